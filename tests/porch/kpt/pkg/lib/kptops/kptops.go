// Package kptops renders and clones, which Porch's server is not asked for on this side.
package kptops

import (
	"context"
	"errors"

	fnresult "github.com/kptdev/kpt/pkg/api/fnresult/v1"
	kptfilev1 "github.com/kptdev/kpt/pkg/api/kptfile/v1"
	"github.com/kptdev/kpt/pkg/fn"
	"github.com/kptdev/kpt/pkg/lib/runneroptions"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

type FunctionRuntime = fn.FunctionRuntime

func NewSimpleFunctionRuntime() FunctionRuntime { return fn.NewMultiRuntime(nil) }

type Renderer struct{}

func NewRenderer(runneroptions.RunnerOptions) Renderer { return Renderer{} }

func (Renderer) Render(
	context.Context, filesys.FileSystem, fn.RenderOptions,
) (*fnresult.ResultList, error) {
	return nil, errors.New("packages are not rendered on this side")
}

func UpdateKptfileUpstream(
	string, map[string]string, kptfilev1.Upstream, kptfilev1.UpstreamLock,
) error {
	return errors.New("packages are not cloned on this side")
}
