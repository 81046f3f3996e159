// Package cmdutil has what commands have in common.
package cmdutil

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
)

// StackOnError is set by a flag, which changes nothing here.
var StackOnError bool

func PrintErrorStacktrace() bool { return false }

// Options are those of a command that reads objects.
type Options struct {
	*genericclioptions.ConfigFlags
	AllNamespaces bool
}

func (o *Options) AddFlags(command *cobra.Command) {
	command.Flags().BoolVarP(&o.AllNamespaces, "all-namespaces", "A", false, "Read all namespaces")
}

// ResourceBuilder returns a builder for the namespace of the flags, else that of the kubeconfig.
func (o *Options) ResourceBuilder() (*resource.Builder, error) {
	namespace, _, err := o.ConfigFlags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	builder := resource.NewBuilder(o.ConfigFlags).NamespaceParam(namespace)
	return builder.DefaultNamespace().AllNamespaces(o.AllNamespaces), nil
}

func CheckDirectoryNotPresent(path string) error {
	if _, err := os.Stat(path); err == nil {
		return fmt.Errorf("output directory %q already exists", path)
	} else if !os.IsNotExist(err) {
		return err
	}
	return nil
}
