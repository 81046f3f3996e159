"""The Helm chart: the base of the manifests, with values in place of what differs between installations.

Each object is the one that `pvbus install` applies. What a value decides has a mark in its place, and an
expression of Helm replaces the mark in the text.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy

from pvbus import __version__
from pvbus.core.kernel.topics import ALL_SERVICES
from pvbus.install import manifests
from pvbus.install.objects import NAME, Object, Options
from pvbus.install.roles import accounts, bindings, namespaced_roles, roles
from pvbus.install.workloads import DIGEST, NEEDS, REPLICAS
from pvbus.runtime.yamltext import yaml_stream

FOLDER = "chart"
Part = Callable[[Options], Iterator[Object]]
_RELEASE, _EACH, _IMAGE = "@@release@@", "@@each@@", "@@image@@"
_MARK = re.compile(r"'?@@([a-z:]+)@@'?")
_EXPRESSIONS = {
    "release": "$.Release.Namespace",
    "each": ".",
    "image": "$.Values.image | quote",
    "data": 'include "pvbus.data" $ | fromYaml | toJson',
    "digest": 'include "pvbus.data" $ | fromYaml | toJson | sha256sum | trunc 16 | quote',
    "brokers": 'include "pvbus.brokers" $',
}
_HELPERS = """\
{{- define "pvbus.data" -}}
{{- $own := dict "PVBUS_BUS" .Values.bus "PVBUS_NAMESPACES" (join "," (sortAlpha .Values.namespaces)) -}}
{{- $data := dict -}}
{{- range $name, $value := mergeOverwrite (deepCopy .Values.defaults) .Values.settings $own -}}
{{- $_ := set $data $name (toString $value) -}}
{{- end -}}
{{- toYaml $data -}}
{{- end -}}
{{- define "pvbus.brokers" -}}
{{- $ports := list -}}
{{- range regexFindAll ":[0-9]+" .Values.bus -1 | uniq -}}
{{- $ports = append $ports (dict "port" (trimPrefix ":" . | int) "protocol" "TCP") -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}
"""


def files() -> dict[str, str]:
    """Return the files of the chart: path relative to the folder of manifests -> text."""
    found = {f"{FOLDER}/Chart.yaml": _chart(), f"{FOLDER}/values.yaml": _values()}
    texts = {name: _template(part(_options())) for name, part in manifests.BASE.items() if name != "rbac"}
    texts["namespace"] = "{{- if .Values.createNamespace }}\n" + texts["namespace"] + "{{- end }}\n"
    texts["settings"] = _HELPERS + texts["settings"]
    texts["rbac"] = _rbac()
    texts["promotion"] = _promotion()
    texts["platform"] = _platform()
    return found | {f"{FOLDER}/templates/{name}.yaml": text for name, text in texts.items()}


def _options() -> Options:
    return Options(namespace=_RELEASE, image=_IMAGE)


def _rbac() -> str:
    """Return the accounts, and their ClusterRoles or, in each of the given namespaces, their Roles."""
    return "".join(
        (
            _template(accounts(_RELEASE)),
            "{{- range .Values.namespaces }}\n",
            _template(namespaced_roles((_EACH,), _RELEASE)),
            "{{- else }}\n",
            _template([*roles(), *bindings(_RELEASE)]),
            "{{- end }}\n",
        )
    )


def _promotion() -> str:
    """Return promote, rollout and release, if the values ask for them."""
    return _optional("promotion", manifests.promotion, manifests.promotion_rights)


def _platform() -> str:
    """Return resolve and establish, if the values ask for them."""
    return _optional("platform", manifests.platform, manifests.platform_rights)


def _optional(name: str, part: Part, rights_of: Part) -> str:
    limited = _options()._replace(namespaces=(_EACH,))
    in_all, in_each = [*rights_of(_options())], [*rights_of(limited)]
    others = [each for each in part(_options()) if each not in in_all]
    return "".join(
        (
            f"{{{{- if .Values.{name} }}}}\n",
            _template(others),
            "{{- range .Values.namespaces }}\n",
            _template(in_each),
            "{{- else }}\n",
            _template(in_all),
            "{{- end }}\n",
            "{{- end }}\n",
        )
    )


def _template(objects: Iterable[Object]) -> str:
    return _MARK.sub(_expression, yaml_stream([*map(_marked, objects)]))


def _expression(mark: re.Match[str]) -> str:
    name, _, service = mark[1].partition(":")
    if service:
        return f"{{{{ $.Values.{name}.{service} | toJson }}}}"
    return f"{{{{ {_EXPRESSIONS[name]} }}}}"


def _marked(obj: Object) -> Object:
    """Return an object with marks for what is no text in it, or differs in a chart."""
    obj = deepcopy(obj)
    match obj["kind"]:
        case "ConfigMap":
            obj["data"] = "@@data@@"
        case "Deployment":
            service = obj["metadata"]["labels"]["app.kubernetes.io/component"]
            obj["spec"]["replicas"] = f"@@replicas:{service}@@"
            obj["spec"]["template"]["metadata"]["annotations"][DIGEST] = "@@digest@@"
            obj["spec"]["template"]["spec"]["containers"][0]["resources"] = f"@@resources:{service}@@"
        case "NetworkPolicy" if obj["metadata"]["name"] == f"{NAME}-bus":
            obj["spec"]["egress"][1]["ports"] = "@@brokers@@"
    return obj


def _chart() -> str:
    return yaml_stream(
        [
            {
                "apiVersion": "v2",
                "name": NAME,
                "description": "Event-driven controllers of package variants, compatible with Porch",
                "type": "application",
                "version": __version__,
                "appVersion": __version__,
                "kubeVersion": ">=1.30.0-0",
            }
        ]
    )


def _values() -> str:
    (data,) = (obj["data"] for obj in manifests.configuration(Options()))
    defaults = {name: value for name, value in data.items() if name not in ("PVBUS_BUS", "PVBUS_NAMESPACES")}
    parts: Iterator[tuple[str, Object]] = iter(
        (
            ("As the nodes of the cluster get it.", {"image": Options().image}),
            ("kafka://HOST:PORT[,HOST:PORT...][/PREFIX], the same for all services.", {"bus": Options().bus}),
            ("Work in these namespaces alone, with Roles in them; with none, in all.", {"namespaces": []}),
            ("Settings of your own: PVBUS_LOG_LEVEL: debug.", {"settings": {}}),
            ("Run promote, rollout and release, which propose and approve.", {"promotion": False}),
            ("Run resolve and establish, which install packages.", {"platform": False}),
            (
                "Make the namespace of the release, in which nothing but restricted pods may run.",
                {"createNamespace": False},
            ),
            ("Pods of each service.", {"replicas": dict.fromkeys(ALL_SERVICES, REPLICAS)}),
            (
                "Of each worker. Without a limit of CPU, as throttled workers lose their leases.",
                {
                    "resources": {
                        name: {
                            "requests": {"cpu": needs.cpu, "memory": needs.memory},
                            "limits": {"memory": needs.memory_limit},
                        }
                        for name, needs in NEEDS.items()
                    }
                },
            ),
            ("Settings as the program has them: override them in `settings`.", {"defaults": defaults}),
        )
    )
    texts = (f"# {comment}\n{yaml_stream([value])}" for comment, value in parts)
    return "\n".join(text.replace("---\n", "") for text in texts)
