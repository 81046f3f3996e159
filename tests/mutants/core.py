"""Mutations of the pure decisions but for removal: selectors, index, tables, render, conditions, inject."""

from tests.mutants.mutation import Mutation

SYNC = "pvbus/core/tables.py"
INDEX = "pvbus/core/index.py"
SELECTORS = "pvbus/core/selectors.py"
RENDER = "pvbus/core/render.py"
CONDITIONS = "pvbus/core/conditions.py"
INJECT = "pvbus/core/inject/controller.py"
ENSURE = "pvbus/core/inject/ensure.py"
OWNING = "pvbus/core/inject/owning.py"
INJECT_VIEW = "pvbus/core/inject/view.py"
REQUESTS = "pvbus/core/inject/requests.py"
INJECTION = "pvbus/core/mutations/injection.py"
M = Mutation

CORE: tuple[Mutation, ...] = (
    # ---------------------------------------------------------------- sync
    M(
        "sync-ignores-epochs",
        SYNC,
        "if all(m.state == first.state and m.epoch == first.epoch for m in others):",
        "if all(m.state == first.state for m in others):",
    ),
    M("sync-believes-one-partition", SYNC, "if len(markers) < self._partitions:", "if not markers:"),
    M(
        "sync-ignores-states",
        SYNC,
        "if all(m.state == first.state and m.epoch == first.epoch for m in others):",
        "if all(m.epoch == first.epoch for m in others):",
    ),
    # ---------------------------------------------------------------- selectors, index
    M(
        "not-in-needs-the-label",
        SELECTORS,
        "return value is None or value not in requirement.values",
        "return value is not None and value not in requirement.values",
    ),
    M(
        "unknown-operator-matches",
        SELECTORS,
        "            return value is None\n    return False",
        "            return value is None\n    return True",
    ),
    M(
        "selects-in-other-namespaces",
        INDEX,
        'here = kind == self.kind and namespace in (self.namespace, "")',
        "here = kind == self.kind",
    ),
    M(
        "index-not-in-needs-the-label",
        INDEX,
        "            if labels.get(key) in values:\n                return False",
        "            if key not in labels or labels.get(key) in values:\n                return False",
    ),
    M("index-ignores-the-name", INDEX, "if wanted is not None and wanted != name:", "if False:"),
    M(
        "index-forgets-negative-selectors",
        INDEX,
        'for anchor in (("", name), _SCAN):',
        'for anchor in ((("", name)),):',
    ),
    M(
        "index-forgets-what-an-object-had",
        INDEX,
        "for pairs in (after.items(), before.items() - after.items()):",
        "for pairs in (after.items(),):",
    ),
    M(
        "index-ignores-cluster-scoped-objects",
        INDEX,
        'return (selector.namespace, "") if selector.namespace else ("",)',
        "return (selector.namespace,)",
    ),
    M("index-postings-keep-old-labels", INDEX, "            names.discard(name)\n", "            pass\n"),
    # ---------------------------------------------------------------- render
    M(
        "static-labels-win-over-expressions",
        RENDER,
        '        made[name] = _evaluated(value, f"{field}.valueExpr", variables)',
        '        made.setdefault(name, _evaluated(value, f"{field}.valueExpr", variables))',
    ),
    M(
        "missing-repository-is-rendered",
        RENDER,
        "        if found is None:\n            raise RenderError(f'repository",
        "        if found is None and not repo:\n            raise RenderError(f'repository",
    ),
    M(
        "repo-default-wins",
        RENDER,
        'repo = _evaluated(self._repo, "template.downstream.repoExpr", roots) or inputs.repo_default',
        'repo = inputs.repo_default or _evaluated(self._repo, "template.downstream.repoExpr", roots)',
    ),
    M(
        "rows-lack-what-expressions-read",
        RENDER,
        "slim[name] = root if () in paths else _cut(root, paths)",
        "slim[name] = _cut(root, paths)",
    ),
    M(
        "rows-lack-annotations",
        RENDER,
        'for field in ("labels", "annotations"):',
        'for field in ("labels",):',
    ),
    M(
        "list-target-seen-as-an-object",
        RENDER,
        'variables[name] = _listed(root) if name == "target" and row.list_target else _object(root)',
        "variables[name] = _object(root)",
    ),
    M(
        "broken-template-renders",
        RENDER,
        "        if found.errors:\n            raise RenderError",
        "        if False:\n            raise RenderError",
    ),
    # ---------------------------------------------------------------- conditions
    M(
        "result-of-another-uid-is-shown",
        CONDITIONS,
        "            if result.uid != obj.metadata.uid:\n                return None, {}\n",
        "",
    ),
    M(
        "rollup-of-another-uid-is-shown",
        CONDITIONS,
        "            if rollup.uid != obj.metadata.uid:\n                return None, {}\n",
        "",
    ),
    M(
        "conditions-go-back",
        CONDITIONS,
        "if wanted and max(c.observed_generation for c in wanted) < published:",
        "if False:",
    ),
    M(
        "transition-time-moves-with-messages",
        CONDITIONS,
        "same = old.status == new.status and old.last_transition_time",
        "same = old == new and old.last_transition_time",
    ),
    M(
        "foreign-conditions-are-dropped",
        CONDITIONS,
        "        elif old.type not in OPTIONAL_TYPES:\n            result.append(old)",
        "        elif False:\n            result.append(old)",
    ),
    M(
        "message-change-is-no-news",
        CONDITIONS,
        "return old.message != new.message and new.reason not in (",
        "return False and new.reason not in (",
    ),
    M(
        "counts-are-news",
        CONDITIONS,
        "return old.message != new.message and new.reason not in (",
        "return old.message != new.message or new.reason in (",
    ),
    M(
        "gone-without-sync",
        CONDITIONS,
        'if not self._sync[partition][topic].ok(f"{CONFIG_GROUP}/{kind}"):',
        "if False:",
    ),
    M("event-ids-do-not-chain", CONDITIONS, 'seed = [last.id if last else "", uid,', 'seed = ["", uid,'),
    M(
        "old-uid-is-the-previous-status",
        CONDITIONS,
        "former = last if last is not None and last.uid == uid else None",
        "former = last",
    ),
    M(
        "dropped-condition-stays-in-latest",
        CONDITIONS,
        '            puts += self._withdrawn(f"{kind}|{key}", place.latest[left], now)\n',
        "            pass\n",
    ),
    # ---------------------------------------------------------------- inject
    M("inject-does-not-wait-for-its-set", INJECT, "if self._set_will_change_it(one):", "if False:"),
    M("inject-writes-on-hold", INJECT, 'if variant.metadata.annotations.get(HOLD) == "true":', "if False:"),
    M(
        "former-places-forgotten",
        INJECT,
        "places = dict.fromkeys(one.result.downstreams if one.result is not None else ())",
        "places: dict[Downstream, None] = {}",
    ),
    M(
        "result-row-of-another-uid",
        INJECT,
        "return row if row is not None and row.uid == self.uid else None",
        "return row",
    ),
    M("inject-without-sync", INJECT, "if not self.view.sync.ok(kind):", "if False:"),
    M("gone-variant-without-sync", INJECT, "if not self._sync[partition].ok(VARIANT_KIND):", "if False:"),
    M(
        "foreign-finalizer-taken-off",
        OWNING,
        'raw["metadata"]["finalizers"] = [f for f in raw["metadata"]["finalizers"] if f != FINALIZER]',
        'raw["metadata"]["finalizers"] = []',
    ),
    M(
        "adopts-what-has-an-owner",
        OWNING,
        '    if owner:\n        message = f"package revision',
        '    if False:\n        message = f"package revision',
    ),
    M(
        "finalizer-without-second-look",
        OWNING,
        "    if left:\n        left = yield from _owned(variant, places)\n    if left:",
        "    if False:",
    ),
    M(
        "dead-owner-still-owns",
        OWNING,
        'if other is not None and other["metadata"].get("uid") == owner.get("uid"):',
        "if other is not None or owner:",
    ),
    M("published-revision-is-deleted", OWNING, "if lifecycle_of(obj) not in PUBLISHED:", "if True:"),
    M(
        "unknown-deletion-policy-deletes",
        OWNING,
        'if variant.spec.deletion_policy not in ("", "delete"):',
        'if variant.spec.deletion_policy == "orphan":',
    ),
    M(
        "live-list-is-believed-unchecked",
        OWNING,
        'if (obj["spec"].get("repository"), obj["spec"].get("packageName")) == (place.repo, place.package)',
        "if True",
    ),
    M(
        "others-revisions-deleted-at-termination",
        OWNING,
        "found += [obj for obj in live if owned_by(obj, variant.metadata.uid)]",
        "found += live",
    ),
    M(
        "disowned-after-proposal-left-out",
        OWNING,
        '            if after is not None and lifecycle_of(after) == "DeletionProposed":',
        "            if False:",
    ),
    M(
        "adopts-the-placeholder",
        ENSURE,
        'return self.variant.spec.adoption_policy == "adoptExisting" and revision != PLACEHOLDER',
        'return self.variant.spec.adoption_policy == "adoptExisting"',
    ),
    M(
        "adopts-without-the-policy",
        ENSURE,
        'return self.variant.spec.adoption_policy == "adoptExisting" and revision != PLACEHOLDER',
        "return revision != PLACEHOLDER",
    ),
    M(
        "clones-without-a-live-list",
        ENSURE,
        "            chosen = yield from self._found_live(live)\n",
        "            chosen = []\n",
    ),
    M(
        "clones-over-a-living-owner",
        ENSURE,
        "            if owner:\n                message = (\n                    f'package",
        "            if False:\n                message = (\n                    f'package",
    ),
    M("clones-beside-a-going-one", ENSURE, "if not chosen and going:", "if False:"),
    M(
        "upstream-by-revision-alone",
        INJECT_VIEW,
        "            if workspace and revision.facts.workspace != workspace:\n                continue\n",
        "",
    ),
    M(
        "upstream-of-any-revision",
        INJECT_VIEW,
        "            if upstream.revision > 0 and revision.facts.revision != upstream.revision:\n                continue\n",
        "",
    ),
    M(
        "placeholder-without-its-commit",
        INJECT_VIEW,
        'commit = self.facts.self_commit if self.is_placeholder else ""',
        'commit = ""',
    ),
    M(
        "shared-content-request-withdrawn",
        REQUESTS,
        "            if not claim.users[key]:\n                del claim.users[key]\n                left.add(key)",
        "            left.add(key)",
    ),
    M(
        "content-requests-are-never-withdrawn",
        REQUESTS,
        "puts += [Put(WATCHES, key, None) for key in sorted(left & asked)]",
        "pass",
    ),
)
