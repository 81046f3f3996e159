// Package addmergecomment marks resources for merges, which Porch's server is not asked for on this side.
package addmergecomment

import (
	"errors"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

type AddMergeComment struct{}

func (*AddMergeComment) Filter(*yaml.RNode) (*yaml.RNode, error) {
	return nil, errors.New("resources are not marked on this side")
}
