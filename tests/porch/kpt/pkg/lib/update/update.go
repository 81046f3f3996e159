// Package update merges packages, which Porch's server is not asked for on this side.
package update

import (
	"errors"

	"github.com/kptdev/kpt/pkg/lib/update/updatetypes"
)

type refuse struct{}

func (refuse) Update(updatetypes.Options) error {
	return errors.New("packages are not merged on this side")
}

func GetUpdater(string) updatetypes.Updater { return refuse{} }
