// Stands for the library of kpt, which cannot be had as a module, while Porch's programs and tests are built.
// Written for pvbus: only what these call, by the names they call it.
module github.com/kptdev/kpt

go 1.24

require (
	github.com/google/go-containerregistry v0.20.6
	github.com/spf13/cobra v1.10.2
	k8s.io/apimachinery v0.34.1
	k8s.io/cli-runtime v0.34.1
	sigs.k8s.io/kustomize/kyaml v0.20.1
)
