// Package builtintypes names the package context.
package builtintypes

const (
	PkgContextFile       = "package-context.yaml"
	PkgContextName       = "kptfile.kpt.dev"
	ConfigKeyPackagePath = "package-path"
)

type PackageConfig struct {
	PackagePath string
}
