// Package fn has what runs functions. Porch's server lists its runtimes, and asks none of them for anything.
package fn

import (
	"context"
	"fmt"
	"io"

	kptfilev1 "github.com/kptdev/kpt/pkg/api/kptfile/v1"
)

type FunctionRunner interface {
	Run(r io.Reader, w io.Writer) error
}

type FunctionRuntime interface {
	GetRunner(ctx context.Context, fn *kptfilev1.Function) (FunctionRunner, error)
}

type RenderOptions struct {
	PkgPath string
	Runtime FunctionRuntime
}

type NotFoundError struct {
	Function kptfilev1.Function
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("function %q not found", e.Function.Image) }

type MultiRuntime struct {
	runtimes []FunctionRuntime
}

func NewMultiRuntime(runtimes []FunctionRuntime) *MultiRuntime { return &MultiRuntime{runtimes} }

func (m *MultiRuntime) Add(runtime FunctionRuntime) { m.runtimes = append(m.runtimes, runtime) }

func (m *MultiRuntime) GetRunner(_ context.Context, fn *kptfilev1.Function) (FunctionRunner, error) {
	return nil, &NotFoundError{*fn}
}
