"""The table of bad input and faults of promotion and rollouts: which tests show what happens then.

It is for people who ask whether a case was thought of. A name that is not the name of a test fails.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CORE, SIMULATION = "unit/core", "simulation"
KILLS = (
    f"{SIMULATION}/test_promotion_kills.py::test_a_kill_at_any_await_changes_neither_the_end_nor_the_history"
)
STORM = (
    f"{SIMULATION}/test_rollouts.py"
    "::test_under_faults_and_kills_each_approval_is_planned_in_time_and_done_once"
)
MODEL = f"{SIMULATION}/test_rollout_model.py::test_no_order_of_moves_with_one_trick_breaks_a_promise"

FAULTS: dict[str, tuple[str, ...]] = {
    "a gate that nobody serves": (
        f"{CORE}/promotion/test_promote.py::test_what_becomes_of_a_revision",
        f"{CORE}/promotion/test_promote.py::test_a_gate_that_a_specializer_reports_is_said_to_be_served",
        "e2e/cli/test_promote.py::test_a_draft_is_acknowledged_gated_proposed_rejected_and_proposed_again",
    ),
    "a condition that somebody else writes in the same second": (
        "unit/cli/test_condition.py::test_a_write_in_the_same_moment_is_merged",
        "unit/cli/test_condition.py::test_in_order_counts_what_is_there_when_the_write_arrives",
        "integration/packages/test_gates.py::test_writers_of_different_types_never_lose_each_others_update",
        f"{CORE}/promotion/test_promote.py::test_a_change_between_read_and_write_is_a_conflict_and_no_proposal",
    ),
    "a resolver that looks before its turn": (
        "integration/packages/test_resolvers.py"
        "::test_the_second_resolver_is_engaged_only_while_the_condition_of_the_first_is_true",
    ),
    "a specializer that never answers": (
        f"{CORE}/promotion/test_promote.py::test_a_draft_waits_for_each_specializer_that_selects_it",
        f"{CORE}/promotion/test_promote.py::test_the_next_decision_is_at_the_deadline",
        f"{CORE}/promotion/test_promote.py::test_in_any_order_nothing_is_proposed_before_an_acknowledgement",
    ),
    "a policy whose percentages do not rise to 100": (
        f"{CORE}/promotion/test_rollout_policy.py::test_what_is_wrong_with_a_policy_is_named_with_its_field",
        f"{CORE}/promotion/test_rollout_service.py::test_a_policy_that_is_not_valid_orders_nothing_and_says_so",
        f"{CORE}/promotion/test_rollout_selection.py::test_a_wrong_policy_approves_nothing_and_hands_nothing_over",
    ),
    "a policy that becomes wrong in the middle": (
        f"{CORE}/promotion/test_rollout_service.py"
        "::test_a_policy_that_becomes_invalid_in_the_middle_stands_still_and_goes_on_when_it_is_mended",
    ),
    "a policy whose CEL does not compile, or fails": (
        f"{CORE}/promotion/test_rollout_policy.py::test_what_is_wrong_with_a_policy_is_named_with_its_field",
        f"{CORE}/promotion/test_rollout_checks.py::test_an_object_check_passes_or_waits",
    ),
    "a Prometheus that is down or slow": (
        "unit/adapters/test_prometheus.py::test_no_server_at_all_is_an_error_in_words",
        "unit/adapters/test_prometheus.py::test_a_slow_server_is_not_waited_for",
        "unit/adapters/test_prometheus.py::test_a_connection_that_is_cut_is_an_error_in_words",
        f"{CORE}/promotion/test_rollout_checks.py::test_without_answers_a_look_ends_after_a_few_checks",
        f"{CORE}/promotion/test_rollout_service.py"
        "::test_a_prometheus_that_is_away_or_lies_holds_the_wave_and_fails_nothing",
    ),
    "a Prometheus that lies about time": (
        "unit/adapters/test_prometheus.py::test_the_clock_of_the_server_is_compared",
        f"{CORE}/promotion/test_rollout_checks.py::test_an_answer_that_cannot_be_believed_passes_and_fails_nothing",
        f"{CORE}/promotion/test_rollout_checks.py::test_a_query_check_passes_fails_or_waits",
        f"{CORE}/promotion/test_rollout_service.py"
        "::test_a_prometheus_that_is_away_or_lies_holds_the_wave_and_fails_nothing",
    ),
    "two policies for one revision": (
        f"{CORE}/promotion/test_candidates.py::test_of_two_policies_one_has_the_target_and_the_other_knows",
        f"{CORE}/promotion/test_candidates.py::test_a_policy_of_higher_rank_takes_over_and_gives_back",
        f"{CORE}/promotion/test_rollout_service.py::test_a_target_that_another_policy_wins_leaves_and_is_reported",
    ),
    "an approval that is withdrawn in the middle": (
        f"{CORE}/promotion/test_approvals.py::test_an_approval_that_was_on_its_way_when_it_was_withdrawn_conflicts",
        f"{CORE}/promotion/test_approvals.py::test_a_withdrawal_that_arrives_between_two_effects_stops_the_approval",
        f"{SIMULATION}/test_vetoes.py::test_a_veto_takes_out_one_target_and_the_wave_goes_on",
        KILLS,
    ),
    "a veto of one target": (
        f"{SIMULATION}/test_vetoes.py::test_a_veto_takes_out_one_target_and_the_wave_goes_on",
        f"{CORE}/promotion/test_rollout_machine.py::test_a_veto_requeues_that_target_alone_and_the_others_go_on",
        f"{CORE}/promotion/test_approvals.py::test_a_veto_before_the_write_is_no_refusal",
    ),
    "a rejection": (
        f"{CORE}/promotion/test_promote.py::test_a_rejected_draft_is_proposed_again_when_its_content_changes",
        f"{CORE}/promotion/test_promote.py::test_after_any_history_no_content_is_proposed_again_that_a_person_rejected",
        STORM,
    ),
    "a revision that is deleted in the middle": (
        f"{SIMULATION}/test_rollout_accidents.py"
        "::test_a_deleted_revision_leaves_and_the_new_one_of_its_name_is_approved",
        f"{CORE}/promotion/test_rollout_machine.py"
        "::test_a_deleted_target_leaves_and_its_row_goes_with_the_next_attempt",
        f"{CORE}/promotion/test_approvals.py::test_a_revision_that_is_deleted_before_the_write_is_looked_at_again",
        f"{CORE}/promotion/test_promote.py::test_a_crash_at_any_effect_of_release_proposes_once",
    ),
    "an upstream that moves in the middle": (
        f"{SIMULATION}/test_rollout_accidents.py"
        "::test_what_the_canary_did_not_have_goes_to_nobody_when_the_upstream_moves",
        f"{CORE}/promotion/test_rollout_machine.py"
        "::test_a_new_upstream_revision_leaves_the_attempt_and_starts_again_with_the_canary",
        STORM,
    ),
    "a clock that jumps": (
        f"{SIMULATION}/test_rollout_accidents.py"
        "::test_a_clock_that_jumps_shortens_no_hold_time_and_holds_nothing_up",
        f"{CORE}/promotion/test_rollout_machine.py::test_a_jump_of_the_clock_ends_no_hold_time_and_holds_nothing_up",
        f"{CORE}/promotion/test_rollout_service.py::test_the_clock_may_jump_without_ending_a_hold_time",
    ),
    "a kill -9 of promote, rollout or release": (
        KILLS,
        f"{SIMULATION}/test_rollouts.py::test_a_killed_rollout_goes_on_where_it_was_at_each_of_its_steps",
        f"{SIMULATION}/test_promotion.py"
        "::test_under_faults_and_kills_each_attempt_is_proposed_once_and_never_unready",
        f"{CORE}/promotion/test_approvals.py::test_a_kill_between_any_two_effects_of_an_approval_approves_once",
        f"{CORE}/promotion/test_approvals.py::test_a_kill_between_any_two_effects_makes_no_second_revision",
        STORM,
    ),
    "a kill -9 of them on Kafka, and on a real API server": (
        "e2e/kafka/test_promotion.py"
        "::test_services_of_promotion_are_killed_and_do_nothing_twice_early_or_too_much",
        "integration/kafka/test_acl_processes.py::test_services_under_their_own_users",
        "e2e/cluster/test_packages.py"
        "::test_each_draft_is_proposed_once_though_the_services_of_promotion_are_killed",
    ),
    "a bus that is lost in the middle": (
        "unit/core/promotion/test_rollout_recovery.py"
        "::test_the_numbers_of_attempts_go_on_and_an_old_annotation_lets_no_wave_pass",
        "unit/core/promotion/test_rollout_recovery.py"
        "::test_what_an_attempt_did_not_prove_is_not_approved_before_a_person_restarts_it",
    ),
    "evidence of another revision, content or attempt": (
        f"{CORE}/promotion/test_rollout_machine.py"
        "::test_evidence_of_another_revision_content_or_attempt_proves_nothing",
        MODEL,
        KILLS,
    ),
    "more targets in flight, or failing, than the budgets allow": (
        f"{CORE}/promotion/test_rollout_machine.py::test_no_more_than_the_budget_is_in_flight",
        f"{CORE}/promotion/test_rollout_machine.py::test_one_failing_target_more_than_the_budget_stops",
        f"{CORE}/promotion/test_rollout_thousand.py"
        "::test_a_thousand_proposals_are_approved_in_four_waves_with_the_canaries_first",
        f"{CORE}/promotion/test_rollout_thousand.py::test_a_bad_target_stops_a_thousand_in_its_wave",
        MODEL,
        STORM,
    ),
    "a request that is carried out long after its sender gave up": (
        f"{CORE}/promotion/test_approvals.py::test_after_a_withdrawal_its_attempt_approves_no_more",
        STORM,
    ),
}


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of the tests that pytest collects from a file."""
    found = ast.parse(path.read_text()).body
    functions = (each for each in found if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


@pytest.mark.parametrize("fault", list(FAULTS))
def test_the_tests_of_a_fault_exist(fault: str) -> None:
    tests = FAULTS[fault]
    assert tests
    for name in tests:
        file, _, function = name.partition("::")
        path = ROOT / file
        assert path.name.startswith("test_"), f"pytest collects nothing from {file}"
        assert path.is_file(), f"{fault}: there is no {file}"
        assert function in names_in(path), f"{fault}: {file} has no {function}"
