// Package kptfileutil reads and compares Kptfiles.
package kptfileutil

import (
	"bytes"
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

// Equal tells whether two Kptfiles are written alike.
func Equal(one, other *kptfilev1.KptFile) (bool, error) {
	texts := make([][]byte, 0, 2)
	for _, file := range []*kptfilev1.KptFile{one, other} {
		text, err := yaml.Marshal(file)
		if err != nil {
			return false, fmt.Errorf("cannot write a Kptfile: %w", err)
		}
		texts = append(texts, text)
	}
	return bytes.Equal(texts[0], texts[1]), nil
}
