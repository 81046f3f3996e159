// Package kptfileutil reads Kptfiles.
package kptfileutil

import (
	"fmt"
	"io"

	kptfilev1 "github.com/kptdev/kpt/pkg/api/kptfile/v1"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// DecodeKptfile reads a Kptfile, and refuses fields it does not know.
func DecodeKptfile(in io.Reader) (*kptfilev1.KptFile, error) {
	decoder := yaml.NewDecoder(in)
	decoder.KnownFields(true)
	file := &kptfilev1.KptFile{}
	if err := decoder.Decode(file); err != nil {
		return &kptfilev1.KptFile{}, fmt.Errorf("invalid 'v1' Kptfile: %w", err)
	}
	return file, nil
}
