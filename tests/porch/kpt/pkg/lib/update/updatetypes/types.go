// Package updatetypes has the arguments of an update of a folder.
package updatetypes

type Options struct {
	RelPackagePath, LocalPath, OriginPath, UpdatedPath string
	IsRoot                                             bool
}

type Updater interface {
	Update(options Options) error
}
