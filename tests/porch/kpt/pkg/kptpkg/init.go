// Package kptpkg makes packages, which Porch's server is not asked for on this side.
package kptpkg

import (
	"context"
	"errors"

	"sigs.k8s.io/kustomize/kyaml/filesys"
)

type InitOptions struct {
	PkgPath, PkgName, Desc, Site string
	Keywords                     []string
}

type DefaultInitializer struct{}

func (*DefaultInitializer) Initialize(context.Context, filesys.FileSystem, InitOptions) error {
	return errors.New("packages are not made on this side")
}
