package runneroptions

const (
	GHCRImagePrefix   = "ghcr.io/kptdev/krm-functions-catalog/"
	FuncGenPkgContext = "builtins/gen-pkg-context"
)

// RunnerOptions say how functions run, which none does on this side.
type RunnerOptions struct{}

func (*RunnerOptions) InitDefaults(string) {}
