"""Manifests for kustomize, and the image. `python -m deploy.generate` writes what comes from the code."""
