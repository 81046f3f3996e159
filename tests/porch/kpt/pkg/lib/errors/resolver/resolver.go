// Package resolver explains errors of kpt's own commands, of which Porch's client has none.
package resolver

type ResolvedResult struct {
	Message  string
	ExitCode int
}

func ResolveError(error) (ResolvedResult, bool) { return ResolvedResult{}, false }
