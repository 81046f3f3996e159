"""The table of bad input and faults of packages that depend on each other: the tests that show what happens.

It is for people who ask whether a case was thought of. A name that is not the name of a test fails.
"""

import pytest

from tests.unit.documents.test_promotion_faults import ROOT, names_in

ADAPTER = "unit/adapters/test_sources.py"
LAYERS = "unit/core/platform/packaging/test_archives.py"
XPKG = "unit/core/platform/packaging/test_xpkg.py"
CONFLICTS = "unit/core/platform/resolve/test_conflicts.py"
RECOVERY = "unit/core/platform/resolve/test_recovery.py"
SOURCES = "unit/core/platform/resolve/test_sources.py"
REVISIONS = "unit/core/platform/resolve/test_revisions.py"
ACTIVATION = "unit/core/platform/establish/test_activation.py"
PEOPLE = "unit/core/platform/establish/test_people.py"
CARVEL = "unit/core/platform/establish/test_carvel.py"
REPORTING = "unit/core/platform/establish/test_reporting.py"
READERS = "property/packaging/test_readers.py"
NAMES = "unit/core/platform/resolve/test_names.py"
WORLD = "simulation/test_packages.py"
STORM = f"{WORLD}::test_after_any_storm_packages_are_as_the_rules_say_and_a_restart_is_silent"
KILLS = f"{WORLD}::test_a_kill_at_any_await_ends_as_if_there_had_been_none"
ARCHIVES = "property/test_sources.py::test_any_archive_gives_safe_files_within_the_limits_or_is_refused"

FAULTS: dict[str, tuple[str, ...]] = {
    "a registry that is down": (
        f"{ADAPTER}::test_a_registry_that_is_down_is_asked_three_times",
        f"{SOURCES}::test_a_source_that_fails_for_a_moment_changes_nothing_that_is_locked",
        f"{SOURCES}::test_failures_are_repeated_more_and_more_seldom",
        f"{ACTIVATION}::test_a_pull_that_failed_is_tried_again_for_the_same_revision",
        STORM,
    ),
    "a registry that is slow, or never answers": (
        f"{ADAPTER}::test_a_silent_registry_is_given_up",
        f"{ADAPTER}::test_a_registry_that_sends_a_byte_now_and_then_is_given_up",
        f"{ADAPTER}::test_a_connection_that_is_cut_in_a_layer_is_made_again",
        STORM,
    ),
    "a registry or mirror that sends other bytes": (
        f"{ADAPTER}::test_other_bytes_than_the_digest_says_are_refused",
        f"{RECOVERY}::test_an_answer_that_is_not_the_content_is_no_defect_of_it",
        STORM,
    ),
    "a registry that refuses": (
        f"{ADAPTER}::test_a_refusal_is_permanent_and_says_which",
        f"{ADAPTER}::test_a_wrong_secret_is_refused_and_a_right_one_works_at_once",
        f"{SOURCES}::test_a_refused_pull_is_tried_again_at_once_with_another_secret_for_the_same_content",
    ),
    "a content that is gone from its registry": (
        f"{RECOVERY}::test_a_former_content_that_is_gone_holds_nobody_up",
    ),
    "another media type": (
        f"{ADAPTER}::test_another_media_type_of_a_manifest_is_refused",
        f"{ADAPTER}::test_another_media_type_of_a_layer_is_refused",
    ),
    "a layer of 200 MB, or one that never ends": (
        f"{ADAPTER}::test_a_layer_of_200_mb_is_refused_before_it_is_read",
        f"{ADAPTER}::test_a_layer_that_never_ends_is_refused_at_its_size",
        f"{ADAPTER}::test_content_above_the_limits_is_refused",
    ),
    "a tag that moves": (
        f"{ADAPTER}::test_observing_the_same_image_again_gives_the_same_digest_and_a_moved_tag_another",
        f"{REVISIONS}::test_a_moved_tag_makes_a_revision_and_ends_the_former_one_in_one_row",
        f"{SOURCES}::test_a_moved_tag_makes_a_revision_after_the_interval",
        STORM,
    ),
    "an archive with .., links, devices, or a path twice": (
        f"{LAYERS}::test_a_path_that_is_not_safe_is_refused_and_named",
        f"{LAYERS}::test_links_and_devices_are_refused_and_named",
        f"{LAYERS}::test_a_path_that_is_there_twice_is_refused",
        f"{ADAPTER}::test_links_in_git_are_refused",
        ARCHIVES,
    ),
    "a gzip bomb, or an archive that lies about its sizes": (
        f"{LAYERS}::test_a_gzip_bomb_is_refused_soon_and_with_little_memory",
        f"{LAYERS}::test_a_header_that_lies_about_sizes_is_refused",
        f"{LAYERS}::test_the_limits_hold_for_all_layers_together",
        ARCHIVES,
    ),
    "a package.yaml with two manifests, or none": (
        f"{XPKG}::test_what_cannot_be_used_is_a_defect",
        f"{CONFLICTS}::test_a_broken_package_stops_only_what_needs_it",
        STORM,
    ),
    "a package with an object twice": (f"{XPKG}::test_what_cannot_be_used_is_a_defect",),
    "bytes that are no package at all": (
        f"{READERS}::test_any_bytes_are_a_content",
        f"{READERS}::test_any_documents_are_a_content",
        f"{LAYERS}::test_files_that_hold_no_objects_are_refused",
        f"{LAYERS}::test_what_is_no_archive_or_damaged_is_refused",
    ),
    "an object of a package that somebody else controls": (
        f"{ACTIVATION}::test_an_object_of_somebody_else_is_never_taken",
        f"{CARVEL}::test_an_object_of_another_install_is_not_taken",
        f"{WORLD}::test_a_users_own_objects_are_as_they_were_whatever_packages_bring",
        STORM,
    ),
    "an object of a package that a user has, and nobody controls": (
        f"{ACTIVATION}::test_an_object_without_a_controller_is_adopted",
        f"{ACTIVATION}::test_a_refusal_in_the_middle_gives_back_what_was_adopted",
        f"{ACTIVATION}::test_what_was_adopted_is_released_and_not_deleted",
        STORM,
    ),
    "two packages that bring the same object": (
        f"{CONFLICTS}::test_the_second_package_with_an_object_gets_no_revision_and_is_told_the_owner",
        f"{CONFLICTS}::test_of_two_packages_that_come_together_the_older_install_wins_whole",
        f"{CONFLICTS}::test_an_upgrade_that_takes_anothers_object_is_refused_and_the_old_revision_stays",
        f"{ACTIVATION}::test_the_loser_of_a_conflict_changes_nothing_and_names_the_owner",
        f"{CARVEL}::test_of_two_installs_that_begin_together_one_writes_nothing",
        STORM,
    ),
    "installers of packages in conflict a hundred times at once": (
        f"{CONFLICTS}::test_of_a_hundred_installers_at_once_each_is_granted_whole_or_not_at_all",
        f"{CONFLICTS}::test_a_hundred_installers_at_once_get_a_result_as_if_they_came_one_by_one",
        f"{WORLD}::test_of_two_installers_at_once_one_has_all_and_the_other_nothing_however_many_they_are",
    ),
    "two installs of one package": (
        f"{CONFLICTS}::test_two_installs_of_one_package_are_one_too_many",
        STORM,
    ),
    "packages that need each other in a cycle": (
        "unit/core/platform/solver/test_resolving.py::test_cycles_are_reported_and_are_one_step",
        f"{PEOPLE}::test_packages_that_need_each_other_do_not_wait_for_each_other",
        STORM,
    ),
    "a range that cannot be read": (
        "unit/core/platform/solver/test_languages.py::test_what_is_no_range_is_refused_in_words",
        "unit/core/platform/solver/test_resolving.py::test_a_wish_whose_range_cannot_be_read_is_refused_alone",
        f"{CONFLICTS}::test_a_dependency_whose_range_cannot_be_read_breaks_its_package_alone",
    ),
    "a range that no version meets": (
        f"{CONFLICTS}::test_what_is_missing_is_named",
        STORM,
    ),
    "tags that are no versions": (f"{NAMES}::test_tags_that_are_no_versions_are_only_taken_by_name",),
    "empty names": (
        f"{NAMES}::test_an_install_or_dependency_with_an_empty_name_is_broken_alone",
        f"{XPKG}::test_what_cannot_be_used_is_a_defect",
        f"{READERS}::test_any_object_is_an_install_or_a_problem",
    ),
    "a published lock that a person edits or deletes": (
        f"{PEOPLE}::test_the_published_lock_is_put_right_after_a_person_edits_or_deletes_it",
        f"{REPORTING}::test_the_pages_of_the_lock_follow_it",
        STORM,
    ),
    "a revision that a person edits": (
        f"{PEOPLE}::test_a_revision_whose_annotations_are_removed_by_hand_is_put_right",
        f"{REVISIONS}::test_an_object_without_the_note_of_establish_says_nothing",
        f"{REVISIONS}::test_an_activation_is_acted_on_once",
        f"{REVISIONS}::test_a_user_cannot_leave_a_package_without_an_active_revision",
        f"{ACTIVATION}::test_what_a_user_has_just_activated_is_left_to_the_lock",
        STORM,
    ),
    "a revision that a person deletes": (
        f"{PEOPLE}::test_a_revision_that_a_person_deletes_is_made_again_with_its_objects",
        STORM,
    ),
    "an object of a package that a person edits or deletes": (STORM,),
    "an install made for others that a person edits, or deletes": (
        f"{CARVEL}::test_an_edit_of_an_install_for_others_is_reported",
        "unit/core/platform/resolve/test_dependencies.py::test_a_created_install_that_somebody_deletes_is_made_again",
        "unit/core/platform/packaging/test_carvel.py::test_an_annotation_alone_does_not_let_an_install_be_deleted",
        STORM,
    ),
    "an order that changes while it is carried out": (
        f"{PEOPLE}::test_an_order_that_arrives_during_a_look_is_carried_out_after_it",
        STORM,
    ),
    "a kill -9 between any two writes": (
        f"{ACTIVATION}::test_an_activation_can_be_cut_at_any_effect",
        f"{ACTIVATION}::test_an_upgrade_can_be_cut_at_any_effect",
        f"{ACTIVATION}::test_a_deactivation_can_be_cut_at_any_effect",
        f"{ACTIVATION}::test_a_collection_can_be_cut_at_any_effect",
        f"{CARVEL}::test_an_update_can_be_cut_at_any_effect",
        KILLS,
        STORM,
    ),
    "an API server that refuses in the middle": (
        f"{ACTIVATION}::test_what_the_server_refuses_in_the_dry_run_changes_nothing",
        f"{ACTIVATION}::test_a_refusal_in_the_middle_is_undone",
        f"{CARVEL}::test_what_the_account_may_not_do_changes_nothing",
    ),
    "an API server that answers 409, 429 and 5xx, loses answers, or carries out late": (STORM,),
    "a bus that is lost": (
        f"{WORLD}::test_a_bus_that_is_lost_changes_nothing_in_the_cluster",
        f"{SOURCES}::test_a_lost_lock_is_read_from_the_cluster_before_anything_is_written",
        f"{RECOVERY}::test_a_rebuilt_lock_has_the_objects_of_former_contents_that_no_tag_names",
        f"{RECOVERY}::test_a_lost_lock_keeps_what_a_user_activated_by_hand",
        f"{RECOVERY}::test_a_lost_lock_goes_on_with_an_upgrade_that_had_begun",
        STORM,
    ),
    "a kind that is not listed yet": (
        f"{SOURCES}::test_an_install_is_not_ended_while_its_kind_is_not_listed",
    ),
    "Crossplane or kapp-controller beside pvbus": (
        "unit/core/platform/establish/test_others.py::test_nothing_is_written_beside_crossplane",
        "unit/core/platform/establish/test_others.py::test_nothing_is_written_beside_kapp_controller",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_tests_of_a_fault_of_packages_exist(fault: str) -> None:
    assert FAULTS[fault]
    for name in FAULTS[fault]:
        file, _, function = name.partition("::")
        path = ROOT / file
        assert path.name.startswith("test_"), f"pytest collects nothing from {file}"
        assert path.is_file(), f"{fault}: there is no {file}"
        assert function in names_in(path), f"{fault}: {file} has no {function}"
