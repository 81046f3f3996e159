// Prints what the Go libraries of versions and ranges answer, as JSON: the vectors that our own code must agree with.
//
//	go run . > ../../data/resolve/versions.json
//
// Nothing here depends on time or chance: the same program prints the same bytes.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"runtime/debug"
	"strings"

	vendir "carvel.dev/vendir/pkg/vendir/versions"
	vendirapi "carvel.dev/vendir/pkg/vendir/versions/v1alpha1"
	masterminds "github.com/Masterminds/semver/v3"
	blang "github.com/blang/semver/v4"
	carvel "github.com/carvel-dev/semver/v4"
	k14s "github.com/k14s/semver/v4"
)

// Table has one answer per constraint and version. Answers: one letter per version, in order: t matches, f does not,
// e the version is refused, p the library panics; the single word "error" if the constraint is refused.
// Order: for each version one letter per version: <, = or >, e if one of the two is refused.
type Table struct {
	Module      string      `json:"module"`
	Versions    []string    `json:"versions"`
	Order       []string    `json:"order"`
	Constraints [][2]string `json:"constraints"`
}

// Selection is one call of vendir's selection. Identifiers: nil excludes prereleases, an empty list admits all.
type Selection struct {
	Versions    []string `json:"versions"`
	Constraints string   `json:"constraints"`
	Prereleases bool     `json:"prereleases"`
	Identifiers []string `json:"identifiers"`
	Highest     string   `json:"highest"`
	Refused     bool     `json:"refused"`
}

type library struct {
	module string
	parse  func(string) (any, error)
	order  func(a, b any) int
	ranges func(string) (func(any) bool, error)
}

func main() {
	tables := map[string]Table{}
	for name, lib := range libraries() {
		tables[name] = tableOf(name, lib)
	}
	document := map[string]any{
		"tables":     tables,
		"selections": map[string]any{"module": module("carvel.dev/vendir"), "cases": selections()},
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		panic(err)
	}
	lines := strings.NewReplacer("],[", "],\n[", "},{", "},\n{") // one case a line; no text of a case has these
	fmt.Print(lines.Replace(text.String()))
}

func libraries() map[string]library {
	return map[string]library{
		"masterminds": {
			module: module("github.com/Masterminds/semver/v3"),
			parse:  func(s string) (any, error) { return masterminds.NewVersion(s) },
			order:  func(a, b any) int { return a.(*masterminds.Version).Compare(b.(*masterminds.Version)) },
			ranges: func(s string) (func(any) bool, error) {
				c, err := masterminds.NewConstraint(s)
				if err != nil {
					return nil, err
				}
				return func(v any) bool { return c.Check(v.(*masterminds.Version)) }, nil
			},
		},
		"blang": {
			module: module("github.com/blang/semver/v4"),
			parse:  func(s string) (any, error) { return blang.Parse(s) },
			order:  func(a, b any) int { return a.(blang.Version).Compare(b.(blang.Version)) },
			ranges: func(s string) (func(any) bool, error) {
				r, err := blang.ParseRange(s)
				if err != nil {
					return nil, err
				}
				return func(v any) bool { return r(v.(blang.Version)) }, nil
			},
		},
		"k14s": {
			module: module("github.com/k14s/semver/v4"),
			parse:  func(s string) (any, error) { return k14s.Parse(s) },
			order:  func(a, b any) int { return a.(k14s.Version).Compare(b.(k14s.Version)) },
			ranges: func(s string) (func(any) bool, error) {
				r, err := k14s.ParseRange(s)
				if err != nil {
					return nil, err
				}
				return func(v any) bool { return r(v.(k14s.Version)) }, nil
			},
		},
		"carvel": {
			module: module("github.com/carvel-dev/semver/v4"),
			parse:  func(s string) (any, error) { return carvel.Parse(s) },
			order:  func(a, b any) int { return a.(carvel.Version).Compare(b.(carvel.Version)) },
			ranges: func(s string) (func(any) bool, error) {
				r, err := carvel.ParseRange(s)
				if err != nil {
					return nil, err
				}
				return func(v any) bool { return r(v.(carvel.Version)) }, nil
			},
		},
	}
}

func module(path string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == path {
			return path + "@" + dependency.Version
		}
	}
	panic("no version of " + path)
}

func tableOf(name string, lib library) Table {
	texts := versions()
	parsed := make([]any, len(texts))
	for i, text := range texts {
		if v, err := lib.parse(text); err == nil {
			parsed[i] = v
		}
	}
	table := Table{Module: lib.module, Versions: texts}
	for _, a := range parsed {
		table.Order = append(table.Order, letters(parsed, func(b any) string {
			if a == nil || b == nil {
				return "e"
			}
			return string("<=>"[lib.order(a, b)+1])
		}))
	}
	for _, text := range constraints(name) {
		check, err := lib.ranges(text)
		if err != nil {
			table.Constraints = append(table.Constraints, [2]string{text, "error"})
			continue
		}
		table.Constraints = append(table.Constraints, [2]string{text, letters(parsed, func(v any) string {
			if v == nil {
				return "e"
			}
			return answer(check, v)
		})})
	}
	return table
}

func answer(check func(any) bool, v any) (letter string) {
	defer func() {
		if recover() != nil {
			letter = "p"
		}
	}()
	if check(v) {
		return "t"
	}
	return "f"
}

func letters(parsed []any, of func(any) string) string {
	var all strings.Builder
	for _, v := range parsed {
		all.WriteString(of(v))
	}
	return all.String()
}

func versions() []string {
	return []string{
		"0.0.0", "0.0.1", "0.0.3", "0.0.4", "0.1.0", "0.1.1", "0.2.3", "0.2.4", "0.3.0", "0.9.9",
		"1.0.0", "1.0.1", "1.1.0", "1.2.0", "1.2.3", "1.2.4", "1.3.0", "1.9.9", "1.10.0", "1.11.1",
		"2.0.0", "2.0.1", "2.1.0", "2.3.4", "3.0.0", "3.1.4", "4.5.6", "10.0.0", "11.1.0", "11.2.0", "12.0.0",
		"0.0.0-alpha", "0.0.0-0", "0.1.0-beta.1", "1.0.0-0", "1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-alpha",
		"1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1",
		"1.0.0--", "1.0.0-x", "1.0.0-x.1", "1.2.0-rc.1", "1.2.3-alpha", "1.2.3-beta.2", "1.3.0-alpha", "2.0.0-alpha",
		"2.0.0-rc.1", "2.1.0-beta.3", "3.0.0-dev",
		"1.0.0+1", "1.0.0+2", "1.0.0+10", "1.0.0+build", "1.0.0+build.1", "1.0.0+001", "1.0.0+a-b", "1.2.3+meta",
		"1.2.3-alpha+meta", "1.2.3-beta.2+exp.5",
		"v1.2.3", "V1.2.3", "vv1.2.3", "v2.0.0-rc.1", "1", "1.2", "v1", "1.2.3.4", "1.2.x", "x", "", "v", "latest",
		"01.2.3", "1.02.3", "1.2.03", "1.2.3-01", "1.2.3-0a", "1.2.3-", "1.2.3+", "1.2.3-a..b", "1.2.3+a..b", "1.2.3-é",
		"1.2.3_a", " 1.2.3", "1.2.3 ", "1.2.3\n", "1,2,3", "-1.2.3", "1.-2.3", "+1.2.3", "1.2.3-a+b+c", "1.2+meta", "1-rc.1",
		"18446744073709551615.0.0", "18446744073709551616.0.0", "1.0.0-18446744073709551615",
		"1.0.0-18446744073709551616", "1.0.0-99999999999999999999", "1.0.0+18446744073709551616",
		"9223372036854775807.1.0", "9223372036854775808.0.0", "١.٢.٣", "sha256:0011", strings.Repeat("1", 300) + ".0.0",
		"1.2.3-" + strings.Repeat("a", 251), "1.2.3-" + strings.Repeat("a", 250),
	}
}

// picked has what a generator seldom finds.
func picked() []string {
	return []string{
		"", " ", "  ", "*", "x", "X", "x.x", "x.x.x", "*.*.*", "1.x", "1.X", "1.*", "1.x.x", "1.2.x", "1.2.*", "1.x.3", "x.1.2",
		"0.x", "0.0.x", "0", "0.0", "1", "1.2", "=1", "==1.0.0", "= 1.2.3", "=v1.2.3", "v1.2.3", "V1.2.3", ">v1.0.0", ">=v1",
		"~1", "~1.2", "~1.2.3", "~0", "~0.0", "~0.0.0", "~x", "~*", "~1.x", "~1.2.x", "~>1", "~>1.2", "~>1.0.0", "~> 1.2.3",
		"^1", "^1.2", "^1.2.3", "^0", "^0.0", "^0.0.3", "^0.0.0", "^0.1", "^0.2.3", "^x", "^*", "^0.x", "^0.0.x", "^1.x", "^1.2.x",
		"^1.0.0-alpha", "^1.2.3-beta.2", "~1.2.3-alpha", "^0.0.0-alpha", "~0.0.0-0", "^2.0.0-0", "1.2.3-alpha", "1.2-alpha",
		"1.x-alpha", "1.2.x-alpha", "!=1.2.x-alpha", "!=1.2-0", "!=1.2.3-alpha", "!=1", "!=1.2", "!=1.x", "!=x", "!=*", "!1.0.0",
		"! 1.0.0", "!=1.2.3", "!= 1.2.3", "> 1", ">1", ">11", ">11.1", ">11.1.0", ">=11", "<11", "<=11", "<=11.1", "=<1.2", "=>1.2",
		"<1.2.x", "<=1.2.x", ">1.2.x", ">=1.2.x", "<=1.x", ">1.x", "<1.x", ">=1.x", ">=1.x.3", ">1.x.3", "<=x", ">x", ">=x", "<x",
		"1.0.0 - 2.0.0", "1 - 2", "1.2 - 2.3.4", "1.2.3 - 2.3", "1.x - 2.x", "1.0.0 -2.0.0", "1.0.0- 2.0.0", "1.0.0-2.0.0",
		"1.0.0  -  2.0.0", "v1.0.0 - v2.0.0", "1.0.0-alpha - 2.0.0-rc.1", "1.0.0 - 2.0.0 || 3.0.0", "1.0.0 - 1.2.0, 1.1.0",
		"1.0.0 - 2.0.0 - 3.0.0", "1.0.0 - 2.0.0 1.0.0 - 2.0.0", "1 - 2 || 1 - 2", ">1.0.0 - 2.0.0", "1.0.0\t-\t2.0.0",
		">=1.0.0, <2.0.0", ">=1.0.0,<2.0.0", ">=1.0.0 <2.0.0", ">=1.0.0<2.0.0", ">= 1.0.0 < 2.0.0", ">=1.0.0 , <2.0.0",
		">=1.0.0,,<2.0.0", ",>=1.0.0", ">=1.0.0,", ">=1.0.0 && <2.0.0", ">=1.0.0 and <2.0.0", "(>=1.0.0)", ">=1.0.0;<2.0.0",
		">=1.0.0, <2.0.0 || >=3.0.0", "<1.0.0||>=2.0.0", "<1.0.0 || >=2.0.0", "<1.0.0 ||>=2.0.0", "<1.0.0|| >=2.0.0", "||",
		"|| 1.0.0", "1.0.0 ||", "1.0.0 || || 2.0.0", "1.0.0 ||  || 2.0.0", "1.0.0 || 1 || 2.0.0", "1 || 2.0.0", "1.0.0 || x",
		"1.0.0 | 2.0.0", "1|2", "1.0.0|", "1.2.3 || 1.2.4 || 1.3.0", ">1.0.0 || >1.0.0", ">1.0.0 <1.0.0", ">=1.0.0 !=1.2.3",
		">=1.0.0 !1.2.3 <2.0.0", ">1.0.0 <3.0.0 !2.0.1-beta.2", ">=1.2.3 <=1.2.3", ">=1.0.0-0", "<2.0.0-0", ">=1.0.0-0 <2.0.0-0",
		">1.0.0+1", ">=1.0.0+1", "<1.0.0+build", "=1.0.0+build", "1.0.0+build", "!=1.0.0+build", "1.0.0+001", "<=1.0.0+2",
		">1.0.0-alpha+1", "1.2+meta", "1.x+meta", "^1.2.3+meta", "~1.2.3+meta", ">1.0.0+a-b", "1.0.0+18446744073709551616",
		"\t>=1.0.0", ">=\t1.0.0", ">=1.0.0\t", "\n>=1.0.0", ">=1.0.0\n<2.0.0", ">=1.0.0\v", "\u00a0>=1.0.0", "\u0085>1.0.0",
		"\u2003>1.0.0", "\x1c>1.0.0", " >=1.0.0 ", "   >=1.0.0", "> =1.0.0", ">=  1.0.0   <   2.0.0", "> > 1.0.0", "= > 1.0.0",
		"foo", "1.0.0foo", "foo1.0.0", ">=foo", ">", ">=", "<", "!", "!=", "=", "~", "^", "~>", "=1.0.0=", ">>1.0.0", "<>1.0.0", "=!1.0.0",
		"===1.0.0", "=~1.0.0", "~=1.0.0", "~ 1.0.0", "^ 1.0.0", "~>=1.0.0", "~^1.0.0", "^~1.0.0", ">~1.0.0", "1.0.0.0", "1.2.3.x", "1..2",
		"1.", ".1", "1.0.", "..", "-1.0.0", "1.-1.0", ">1.-1.x", ">1.+5.x", "<=1.+1.x", ">=1.-0.x", "1.2.-x", "1.0.0-", "1.0.0+", "1.0.0-é",
		"é", "1é", ">é1.0.0", "١.٢.٣", ">١.٠.٠", "1.0.0-x", ">=1.0.0-x", "1.0.0-x.x", ">1.0.0-x.x", "1.0.0-alpha.x", "<1.x-x", "1x", "1.2x",
		"1x.2.x", ">1.2x.x", "x1.x", "1.xx", "1.x.xx", "1.1.xx", "xx", "1.x.x.x", ">1.x.x", "<1.x.x", "<=1.x.x", ">=1.x.x", "!=1.x.x", "!1.x",
		"!1.2.x", "=1.x", "==1.2.x", "=>1.x", "~>1.2.x", "<2.x >1.x", "1.x || 3.x", ">9223372036854775806.x", ">9223372036854775807.x",
		"<=9223372036854775808.x", ">=18446744073709551615.x", "<18446744073709551616.0.0", ">1.9223372036854775807.x",
		"1.0.0-18446744073709551616", ">1.0.0-18446744073709551616", "<1.0.0-99999999999999999999", "01.0.0", ">=01.2", "1.02.x", "1.2.3-01",
		">=1.00.x", ">00.x", "sha256:" + strings.Repeat("0", 64), "latest", "1.0.0 2.0.0", "1.0.0, 2.0.0", "1 2", "1 2.0.0", ">1.0.0 1 <2.0.0",
		">1.0.0 ab <2.0.0", strings.Repeat("1", 300) + ".0.0", ">=1.0.0" + strings.Repeat(" ", 600), strings.Repeat(" ", 505) + ">=1.0.0",
		strings.Repeat(" ", 506) + ">=1.0.0", "1" + strings.Repeat(" || 1", 31), "1" + strings.Repeat(" || 1", 32),
		"1.2.3-" + strings.Repeat("a", 251), "1.2.3-" + strings.Repeat("a", 250), "v" + strings.Repeat("1", 10) + ".x",
	}
}

func constraints(name string) []string {
	random := rand.New(rand.NewSource(int64(len(name))*1000 + int64(name[0])))
	seen, all := map[string]bool{}, []string{}
	add := func(text string) {
		if !seen[text] {
			seen[text] = true
			all = append(all, text)
		}
	}
	for _, text := range picked() {
		add(text)
	}
	for len(all) < 1000 {
		if name != "masterminds" && random.Intn(4) > 0 {
			add(plain(random)) // most of what generated makes is none of their language
		} else {
			add(generated(random))
		}
	}
	return all
}

// plain has ranges of blang's language only.
func plain(random *rand.Rand) string {
	digits := []string{"0", "0", "1", "1", "2", "3", "9", "10", "11"}
	var text strings.Builder
	for i, terms := 0, 1+random.Intn(4); i < terms; i++ {
		if i > 0 {
			text.WriteString(one(random, " ", " ", " || ", "  "))
		}
		text.WriteString(one(random, "", "=", ">", "<", ">=", "<=", ">=", "<", "!=", "!", "> ", "==") + one(random, digits...) + ".")
		switch random.Intn(6) {
		case 0:
			text.WriteString("x")
		case 1:
			text.WriteString(one(random, digits...) + ".x")
		default:
			text.WriteString(one(random, digits...) + "." + one(random, digits...))
			text.WriteString(one(random, "", "", "", "-0", "-1", "-alpha", "-alpha.1", "-beta.11", "-rc.1", "-x", "-x.x"))
			text.WriteString(one(random, "", "", "", "+1", "+10", "+build", "+build.1", "+001"))
		}
	}
	return text.String()
}

func one[T any](random *rand.Rand, of ...T) T { return of[random.Intn(len(of))] }

func generated(random *rand.Rand) string {
	operators := []string{"", "=", "==", "!=", "!", ">", "<", ">=", "<=", "=>", "=<", "~", "~>", "^"}
	usual := []string{"", ">", "<", ">=", "<=", "!=", "~", "^"}
	joins := []string{" ", " ", ", ", ",", " || ", " || ", "||", "  ", " - "}
	var text strings.Builder
	for i, terms := 0, 1+random.Intn(4); i < terms; i++ {
		if i > 0 {
			text.WriteString(one(random, joins...))
		}
		list := usual
		if random.Intn(4) == 0 {
			list = operators
		}
		text.WriteString(one(random, list...) + one(random, "", "", "", "", " ") + number(random))
	}
	if random.Intn(12) == 0 {
		return damaged(random, text.String())
	}
	return text.String()
}

func number(random *rand.Rand) string {
	parts := []string{}
	for i, length := 0, one(random, 1, 2, 2, 3, 3, 3, 3, 3, 3); i < length; i++ {
		parts = append(parts, one(random, "0", "0", "1", "1", "2", "3", "4", "9", "10", "11"))
	}
	if random.Intn(6) == 0 {
		parts[len(parts)-1] = one(random, "x", "x", "x", "X", "*")
	}
	text := one(random, "", "", "", "", "", "", "", "v") + strings.Join(parts, ".")
	if random.Intn(6) == 0 {
		text += "-" + one(random, "0", "1", "2", "alpha", "alpha.1", "beta", "beta.2", "beta.11", "rc.1", "x", "a-b")
	}
	if random.Intn(12) == 0 {
		text += "+" + one(random, "1", "2", "10", "build", "build.1", "001", "meta")
	}
	return text
}

func damaged(random *rand.Rand, text string) string {
	at := random.Intn(len(text) + 1)
	switch random.Intn(3) {
	case 0:
		return text[:at] + one(random, "x", ".", "-", "+", " ", "|", "||", ",", "=", ">", "v", "\t", "&", "é") + text[at:]
	case 1:
		return text[:at] + text[min(at+1, len(text)):]
	default:
		return text + text[:at]
	}
}

func selections() []Selection {
	random := rand.New(rand.NewSource(14))
	pool, all := versions(), []Selection{}
	for len(all) < 800 {
		made := Selection{Prereleases: random.Intn(3) > 0}
		for i, length := 0, random.Intn(9); i < length; i++ {
			version := one(random, pool...)
			if len(version) < 100 {
				made.Versions = append(made.Versions, version)
			}
		}
		if random.Intn(4) > 0 {
			made.Constraints = one(random, plain(random), generated(random), one(random, picked()...))
		}
		config := &vendirapi.VersionSelectionSemver{Constraints: made.Constraints}
		if made.Prereleases {
			for i, length := 0, random.Intn(3); i < length; i++ {
				made.Identifiers = append(made.Identifiers, one(random, "alpha", "beta", "rc", "x", "1", "10", "dev", ""))
			}
			config.Prereleases = &vendirapi.VersionSelectionSemverPrereleases{Identifiers: made.Identifiers}
		}
		if !decide(&made, config) {
			continue // a range on which the library panics; the tables have those
		}
		all = append(all, made)
	}
	return all
}

func decide(made *Selection, config *vendirapi.VersionSelectionSemver) (decided bool) {
	defer func() {
		if problem := recover(); problem != nil {
			fmt.Fprintln(os.Stderr, "panic:", made.Constraints)
			decided = false
		}
	}()
	highest, err := vendir.HighestConstrainedVersion(made.Versions, vendirapi.VersionSelection{Semver: config})
	made.Highest, made.Refused = highest, err != nil
	return true
}
