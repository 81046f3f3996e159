// Package update is called by Porch's server alone, which is not built here.
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
