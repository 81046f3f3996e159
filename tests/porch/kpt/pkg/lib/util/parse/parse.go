// Package parse takes apart the address of a package in git: REPOSITORY.git/DIRECTORY@REF.
package parse

import (
	"fmt"
	"strings"
)

const suffix = ".git"

func HasGitSuffix(address string) bool {
	return strings.HasSuffix(address, suffix) || strings.Contains(address, suffix+"/") ||
		strings.Contains(address, suffix+"@")
}

// URL returns the repository without its suffix, the directory and the ref.
func URL(address string) (repository, directory, ref string, err error) {
	repository, rest, found := strings.Cut(address, suffix)
	if !found {
		return "", "", "", fmt.Errorf("%q does not name a git repository", address)
	}
	directory, ref, _ = strings.Cut(rest, "@")
	return repository, strings.TrimPrefix(directory, "/"), ref, nil
}
