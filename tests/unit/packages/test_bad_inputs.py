"""The table of bad input: of packages, functions and repositories, and where each is tested."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import render

TESTS = Path(__file__).parents[2]

TABLE = """\
Kptfile missing
    unit/packages/test_render.py::test_a_package_without_kptfile_fails_and_stays
Kptfile of an unknown version
    integration/packages/test_bad_packages.py::test_an_upstream_with_a_bad_kptfile_fails_alone
Kptfile that is no YAML
    integration/packages/test_resources.py::test_a_kptfile_that_is_no_yaml_is_kept_and_blocks_proposing
Kptfile that cannot be used
    unit/packages/test_render.py::test_a_kptfile_that_cannot_be_used_is_no_exception
Kptfile that is no YAML, in an upgrade
    unit/core/variants/test_merge.py::test_a_kptfile_that_cannot_be_read_is_refused
objects that are there twice, in an upgrade
    integration/packages/test_bad_packages.py::test_an_object_that_is_there_twice_refuses_the_upgrade_and_leaves_nothing
files that are no objects
    unit/packages/test_render.py::test_what_is_no_kubernetes_object_fails_with_its_file
files that are no YAML, in an upgrade
    unit/core/variants/test_merge.py::test_a_file_that_is_no_yaml_is_taken_whole
binary files
    integration/packages/test_resources.py::test_what_is_no_text_comes_through_a_clone_and_an_update_byte_for_byte
binary files, in an upgrade
    integration/packages/test_upgrade.py::test_files_that_are_no_text_keep_their_bytes
YAML that is not UTF-8
    integration/packages/test_whole_files.py::test_yaml_that_is_not_utf8_keeps_its_bytes_and_names_file_and_byte
submodules, paths that differ only in case, links out of the package
    integration/packages/test_whole_files.py::test_what_no_package_may_have_is_refused_alike_on_every_way_in
packages that cannot be served
    integration/packages/test_skipped.py::test_packages_that_cannot_be_served_are_named_with_the_reason
any files
    property/test_whole_packages.py::test_any_package_arrives_whole_or_is_refused
10 MB
    integration/packages/test_hostile_git.py::test_one_bad_package_of_each_kind_leaves_the_others_alone
symbolic links
    unit/packages/test_hostile.py::test_symbolic_links_stay_in_their_package
symbolic links, in an upgrade
    unit/packages/test_upgrading.py::test_files_keep_bytes_modes_and_links
paths that leave the package
    unit/packages/test_hostile.py::test_paths_of_a_package
paths that leave the package, saved
    integration/packages/test_hostile_git.py::test_files_with_bad_paths_are_refused_and_change_nothing
CRLF, byte order mark, aliases, no last newline
    integration/packages/test_bad_packages.py::test_odd_files_go_through_clone_edit_and_upgrade
billion laughs
    unit/packages/test_hostile.py::test_a_text_costs_its_package_only_and_soon
a function that hangs
    unit/packages/test_executable.py::test_the_time_limit_ends_the_program_and_its_children
a function that takes too much
    unit/packages/test_hostile.py::test_a_program_that_takes_too_much_is_ended
a function that exits with 1, or prints garbage
    unit/packages/test_executable.py::test_failures_say_what_the_program_said
a function that returns paths outside
    unit/packages/test_executable.py::test_an_object_outside_of_the_package_is_refused
a function that returns objects twice
    unit/packages/test_bad_inputs.py::test_an_object_that_a_function_returns_twice_is_there_once
a history that is rewritten upstream, a tag that moves
    integration/packages/test_bad_packages.py::test_a_tag_that_moves_and_a_history_that_is_rewritten_upstream_lose_no_draft
a history that is rewritten downstream
    integration/packages/test_bad_packages.py::test_a_history_that_is_rewritten_downstream_takes_the_next_revision
two stores on one remote
    integration/packages/test_faults.py::test_two_stores_of_one_remote_see_each_others_work_and_keep_it
kills between commit, push and status
    e2e/faults/test_kill_story.py::test_after_any_kills_the_repositories_and_objects_are_as_without
objects of the API
    e2e/faults/test_bad_input.py::test_a_fault_is_told_clearly_and_loses_nothing
"""
LINES = [line.strip() for line in TABLE.splitlines()]
DOUBLING = """
import json, sys, yaml
given = yaml.safe_load(sys.stdin)
given["items"] *= 2
json.dump(given, sys.stdout)
"""


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize(("row", "where"), list(zip(LINES[::2], LINES[1::2], strict=True)))
def test_each_row_names_a_test(row: str, where: str) -> None:
    file, _, name = where.partition("::")
    assert name in functions_of(file), row


def test_an_object_that_a_function_returns_twice_is_there_once(tmp_path: Path) -> None:
    program = tmp_path / "doubling.py"
    program.write_text(DOUBLING)
    kptfile = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: a\n"
    thing = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b # why\n"
    given = {"Kptfile": f"{kptfile}pipeline:\n  mutators:\n  - image: doubling\n", "b.yaml": thing}
    registry = FunctionRegistry({"doubling": [sys.executable, str(program)]})
    result = render(given, registry=registry)
    assert result.rendered, result.message
    assert result.resources["b.yaml"] == thing
    assert result.resources.keys() == given.keys()
