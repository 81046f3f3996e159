// Package v1 has the fields of a Kptfile (kpt.dev/v1).
package v1

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

const (
	KptFileName                   = "Kptfile"
	KptFileGroup                  = "kpt.dev"
	KptFileVersion                = "v1"
	KptFileKind                   = "Kptfile"
	KptFileAPIVersion             = KptFileGroup + "/" + KptFileVersion
	RevisionMetaDataFileName      = ".KptRevisionMetadata"
	RevisionMetaDataKind          = "KptRevisionMetadata"
	SaveOnRenderFailureAnnotation = "kpt.dev/save-on-render-failure"
)

func KptFileGVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: KptFileGroup, Version: KptFileVersion, Kind: KptFileKind}
}

type KptFile struct {
	yaml.ResourceMeta `yaml:",inline" json:",inline"`
	Upstream          *Upstream     `yaml:"upstream,omitempty" json:"upstream,omitempty"`
	UpstreamLock      *UpstreamLock `yaml:"upstreamLock,omitempty" json:"upstreamLock,omitempty"`
	Info              *PackageInfo  `yaml:"info,omitempty" json:"info,omitempty"`
	Pipeline          *Pipeline     `yaml:"pipeline,omitempty" json:"pipeline,omitempty"`
	Inventory         *Inventory    `yaml:"inventory,omitempty" json:"inventory,omitempty"`
	Status            *Status       `yaml:"status,omitempty" json:"status,omitempty"`
}

type OriginType string

const GitOrigin OriginType = "git"

type UpdateStrategyType string

type Upstream struct {
	Type           OriginType         `yaml:"type,omitempty" json:"type,omitempty"`
	Git            *Git               `yaml:"git,omitempty" json:"git,omitempty"`
	UpdateStrategy UpdateStrategyType `yaml:"updateStrategy,omitempty" json:"updateStrategy,omitempty"`
}

type Git struct {
	Repo      string `yaml:"repo,omitempty" json:"repo,omitempty"`
	Directory string `yaml:"directory,omitempty" json:"directory,omitempty"`
	Ref       string `yaml:"ref,omitempty" json:"ref,omitempty"`
}

type UpstreamLock struct {
	Type OriginType `yaml:"type,omitempty" json:"type,omitempty"`
	Git  *GitLock   `yaml:"git,omitempty" json:"git,omitempty"`
}

type GitLock struct {
	Repo      string `yaml:"repo,omitempty" json:"repo,omitempty"`
	Directory string `yaml:"directory,omitempty" json:"directory,omitempty"`
	Ref       string `yaml:"ref,omitempty" json:"ref,omitempty"`
	Commit    string `yaml:"commit,omitempty" json:"commit,omitempty"`
}

type PackageInfo struct {
	Site           string          `yaml:"site,omitempty" json:"site,omitempty"`
	Emails         []string        `yaml:"emails,omitempty" json:"emails,omitempty"`
	LicenseFile    string          `yaml:"licenseFile,omitempty" json:"licenseFile,omitempty"`
	Description    string          `yaml:"description,omitempty" json:"description,omitempty"`
	Keywords       []string        `yaml:"keywords,omitempty" json:"keywords,omitempty"`
	Man            string          `yaml:"man,omitempty" json:"man,omitempty"`
	ReadinessGates []ReadinessGate `yaml:"readinessGates,omitempty" json:"readinessGates,omitempty"`
}

type ReadinessGate struct {
	ConditionType string `yaml:"conditionType" json:"conditionType"`
}

type Pipeline struct {
	Mutators   []Function `yaml:"mutators,omitempty" json:"mutators,omitempty"`
	Validators []Function `yaml:"validators,omitempty" json:"validators,omitempty"`
}

type Function struct {
	Image      string            `yaml:"image,omitempty" json:"image,omitempty"`
	Tag        string            `yaml:"tag,omitempty" json:"tag,omitempty"`
	Exec       string            `yaml:"exec,omitempty" json:"exec,omitempty"`
	ConfigPath string            `yaml:"configPath,omitempty" json:"configPath,omitempty"`
	ConfigMap  map[string]string `yaml:"configMap,omitempty" json:"configMap,omitempty"`
	Name       string            `yaml:"name,omitempty" json:"name,omitempty"`
	Selectors  []Selector        `yaml:"selectors,omitempty" json:"selectors,omitempty"`
	Exclusions []Selector        `yaml:"exclude,omitempty" json:"exclude,omitempty"`
}

// DeepCopy returns a Function that shares nothing with this one.
func (f *Function) DeepCopy() *Function {
	if f == nil {
		return nil
	}
	copied := *f
	copied.ConfigMap = maps.Clone(f.ConfigMap)
	copied.Selectors = copies(f.Selectors)
	copied.Exclusions = copies(f.Exclusions)
	return &copied
}

func copies(selectors []Selector) []Selector {
	copied := slices.Clone(selectors)
	for i := range copied {
		copied[i].Labels = maps.Clone(copied[i].Labels)
		copied[i].Annotations = maps.Clone(copied[i].Annotations)
	}
	return copied
}

type Selector struct {
	APIVersion  string            `yaml:"apiVersion,omitempty" json:"apiVersion,omitempty"`
	Kind        string            `yaml:"kind,omitempty" json:"kind,omitempty"`
	Name        string            `yaml:"name,omitempty" json:"name,omitempty"`
	Namespace   string            `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty" json:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty" json:"annotations,omitempty"`
}

type Inventory struct {
	Namespace   string            `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	Name        string            `yaml:"name,omitempty" json:"name,omitempty"`
	InventoryID string            `yaml:"inventoryID,omitempty" json:"inventoryID,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty" json:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty" json:"annotations,omitempty"`
}

// Status. RenderStatus: passed on as it is.
type Status struct {
	Conditions   []Condition    `yaml:"conditions,omitempty" json:"conditions,omitempty"`
	RenderStatus map[string]any `yaml:"renderStatus,omitempty" json:"renderStatus,omitempty"`
}

type ConditionStatus string

const (
	ConditionTrue    ConditionStatus = "True"
	ConditionFalse   ConditionStatus = "False"
	ConditionUnknown ConditionStatus = "Unknown"
)

type Condition struct {
	Type    string          `yaml:"type" json:"type"`
	Status  ConditionStatus `yaml:"status" json:"status"`
	Reason  string          `yaml:"reason,omitempty" json:"reason,omitempty"`
	Message string          `yaml:"message,omitempty" json:"message,omitempty"`
}

func (in *Selector) DeepCopyInto(out *Selector) {
	*out = *in
	out.Labels, out.Annotations = maps.Clone(in.Labels), maps.Clone(in.Annotations)
}

func (in *Function) DeepCopyInto(out *Function) {
	*out = *in
	out.ConfigMap = maps.Clone(in.ConfigMap)
	out.Selectors, out.Exclusions = copied(in.Selectors), copied(in.Exclusions)
}

func (in *Pipeline) DeepCopyInto(out *Pipeline) {
	out.Mutators, out.Validators = slices.Clone(in.Mutators), slices.Clone(in.Validators)
	for _, each := range [][]Function{out.Mutators, out.Validators} {
		for i := range each {
			source := each[i]
			source.DeepCopyInto(&each[i])
		}
	}
}

func (in *Pipeline) DeepCopy() *Pipeline {
	if in == nil {
		return nil
	}
	out := &Pipeline{}
	in.DeepCopyInto(out)
	return out
}

func copied(in []Selector) []Selector {
	out := slices.Clone(in)
	for i := range in {
		in[i].DeepCopyInto(&out[i])
	}
	return out
}
