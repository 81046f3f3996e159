// Package v1 has the results of functions, of which there are none: nothing is rendered on this side.
package v1

type ResultList struct{}
