// Package builtins writes the package context, which Porch's server is not asked for on this side.
package builtins

import (
	"errors"
	"io"

	"github.com/kptdev/kpt/pkg/fn"
	"github.com/kptdev/kpt/pkg/lib/builtins/builtintypes"
)

type refuse struct{}

func (refuse) Run(io.Reader, io.Writer) error {
	return errors.New("the package context is not written on this side")
}

func GetBuiltinFn(*builtintypes.PackageConfig) fn.FunctionRunner { return refuse{} }
