//! The conformance suite: one test for each sentence of the contract, grouped by verb.
//!
//! The test file of a driver only says how to open a fresh store:
//!
//! ```text
//! async fn open() -> (Arc<dyn Store>, ()) { (Arc::new(MemoryStore::new()), ()) }
//! windlass_store::conformance!(crate::open);
//! ```
//!
//! The test keeps the second value until it ends; it can hold what the store needs, such as a
//! temporary folder.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "these are tests"
)]

pub mod actions;
pub mod build;
pub mod change;
pub mod claim;
pub mod documents_and_records;
pub mod due_queues;
pub mod enqueue;
pub mod failure_groups;
pub mod limits;
pub mod model;
pub mod read;
pub mod refused;
pub mod schedule;
pub mod settle;
pub mod sweep;
pub mod unreadable;

use std::time::Duration;

/// Fails a case that takes longer than any healthy store needs, such as one that waits for an
/// announcement that never comes.
pub async fn within_the_time_limit(case: impl Future<Output = ()>) {
    let in_time = tokio::time::timeout(CASE_TIME_MAX, case).await;
    assert!(in_time.is_ok(), "not done after {CASE_TIME_MAX:?}");
}

/// Cases take milliseconds; the slowest take seconds on a busy machine.
const CASE_TIME_MAX: Duration = Duration::from_secs(180);

/// Generates a test for every case, for one driver.
#[macro_export]
macro_rules! conformance {
    ($open:path) => {
        $crate::conformance! { $open;
            enqueue: [
                stores_every_field_as_it_was_given, answers_in_the_order_of_the_batch,
                a_held_unique_key_names_the_first_job, a_duplicate_within_one_batch_is_found,
                a_waiting_duplicate_can_be_replaced, a_running_duplicate_is_not_replaced,
                unique_keys_are_per_queue, a_dead_job_frees_its_key, a_succeeded_job_frees_its_key,
                a_unique_key_is_held_for_its_unique_for, a_unique_key_is_held_after_its_job_is_removed, a_job_does_not_conflict_with_itself_on_retry,
                a_hundred_concurrent_enqueues_of_one_key_make_one_job, the_same_id_again_is_a_duplicate,
                a_full_queue_takes_all_or_none, a_full_queue_takes_what_fits_if_asked,
                a_batch_is_bounded, an_empty_batch_is_fine, new_jobs_are_announced,
            ],
            claim: [
                goes_by_priority_then_time_then_age, gives_no_job_before_its_run_at,
                counts_the_attempt_and_sets_the_lease, one_job_goes_to_one_of_a_hundred,
                many_claimers_share_a_queue_without_overlap, takes_only_the_given_kinds, leaves_the_excluded_kinds, leaves_the_excepted_jobs,
                takes_only_the_given_jobs, leaves_other_queues_alone, gives_no_finished_or_running_job,
                mixes_lanes_by_ratio, shares_single_slots_by_ratio,
                strict_priority_mixes_both_lanes, a_paused_queue_gives_nothing,
                a_passed_deadline_is_not_started, the_same_claim_again_gives_the_same_leases, two_concurrent_claims_with_one_id_lease_one_set,
                stores_the_policy_of_the_claiming_worker,
            ],
            due_queues: [
                names_queues_with_due_jobs_of_the_kinds, comes_in_pages_by_name, follows_the_pattern,
                leaves_out_paused_queues, leaves_out_running_and_finished_jobs, includes_queues_that_a_limit_holds_back,
                finds_some_of_ten_thousand,
            ],
            limits: [
                retries_in_flight_are_capped, a_queue_runs_no_more_than_its_concurrency,
                the_concurrency_of_a_queue_does_not_change_the_share_of_retries,
                a_concurrency_key_does_not_change_the_share_of_retries,
                a_concurrency_key_for_several_jobs_does_not_change_the_share_of_retries,
                a_queue_starts_no_more_than_its_rate, a_late_claim_keeps_to_the_rate,
                a_claim_that_starts_nothing_forgets_no_start, a_concurrency_key_limits_running_jobs,
                a_concurrency_key_counts_across_all_queues, a_blocked_job_does_not_block_those_behind_it,
                a_lost_lease_gives_its_slot_back, an_overdue_job_does_not_block_its_concurrency_key, each_job_brings_its_own_limit,
                every_end_of_an_attempt_frees_its_concurrency_key, a_blocked_job_starts_when_the_one_before_it_is_changed,
                a_blocked_job_can_be_changed, a_blocked_job_can_be_claimed_by_id,
                a_job_of_another_kind_does_not_block_its_concurrency_key, a_free_key_starts_as_many_jobs_as_it_allows,
            ],
            settle: [
                success_keeps_the_result, a_failure_waits_by_its_policy, the_failure_that_reaches_the_limit_is_the_last,
                attempts_follow_the_backoff, history_counts_retries, a_release_counts_nothing,
                a_snoozed_job_waits_until_the_given_time, an_unrecoverable_failure_is_dead_at_once,
                at_most_once_never_runs_again, the_same_report_again_changes_nothing,
                a_repeated_report_is_recognized_under_its_changed_outcome,
                another_report_of_an_ended_attempt_is_refused, an_old_attempt_changes_nothing,
                an_unknown_attempt_is_refused, an_expired_lease_can_still_be_settled, priority_is_kept_through_retries,
                a_batch_is_answered_in_order, a_revived_job_that_keeps_its_failures_dies_of_the_next,
                two_workers_with_one_name_are_not_confused,
            ],
            sweep: [
                an_expired_lease_is_lost, a_renewed_lease_is_not_swept, an_expired_lease_can_be_renewed_until_it_is_swept,
                a_renewal_reports_a_cancel_request, a_renewal_of_an_ended_attempt_is_refused, a_settled_attempt_is_not_swept,
                a_swept_attempt_writes_nothing_more, a_sweep_is_bounded, overdue_jobs_become_dead,
                three_losses_are_poison, a_lost_at_most_once_job_waits_for_a_person,
                a_lost_job_is_retried_by_the_policy_of_its_claim,
            ],
            change: [
                cancel_ends_a_waiting_job, cancel_asks_a_running_job, cancel_or_success_one_wins,
                cancelling_a_finished_job_is_a_conflict, revive_runs_a_dead_job_again,
                revive_changes_the_fields_that_it_names, revive_moves_a_job_with_its_key,
                revive_into_a_full_queue_is_refused,
                revive_into_a_taken_key_is_a_conflict_for_that_job_only, revive_of_a_lost_job_needs_force,
                run_now_brings_a_retry_forward, edit_changes_a_waiting_job, edit_moves_a_job_and_its_key, a_full_queue_takes_no_moved_and_no_revived_job,
                edit_of_a_running_job_is_a_conflict, resolve_ends_a_lost_job, purge_removes_finished_jobs,
            ],
            failure_groups: [
                a_failure_is_counted_with_its_cause, groups_are_per_queue_kind_and_cause, a_claim_changes_no_group,
                every_change_moves_a_job_between_groups, a_moved_job_moves_to_the_group_of_its_queue,
                a_death_without_an_error_has_its_reason_as_cause, a_group_is_new_again_after_a_day,
                too_many_causes_share_one_group, empty_groups_are_trimmed, concurrent_failures_are_all_counted,
                a_fingerprint_lists_the_jobs_of_its_group,
            ],
            actions: [
                a_step_leaves_alone_what_changed_later, a_step_changes_a_job_once,
                a_step_leaves_alone_what_a_newer_action_changed, a_step_leaves_alone_what_it_saw_differently,
                a_bulk_action_counts_what_it_changes, a_patch_changes_what_it_names,
                a_patch_that_does_not_apply_changes_nothing, a_revived_job_waits_in_the_retry_lane,
                a_revival_can_patch_the_payload, a_replay_counts_what_becomes_of_its_jobs, a_replay_revives_a_job_once,
                an_edit_as_a_step_is_remembered, lists_go_by_the_time_of_the_end,
            ],
            read: [
                get_answers_in_order, list_is_newest_first_in_pages, list_filters, list_examines_a_bounded_number, list_ends_a_page_of_large_jobs_early,
                attempts_are_newest_first,
                counts_cover_every_state, forget_keeps_younger_dead_and_active_jobs,
            ],
            schedule: [
                put_is_compare_and_set, a_name_is_taken_once, due_is_the_longest_due_first, fire_moves_the_schedule_on,
                an_occurrence_fires_once, a_full_queue_drops_no_occurrence, occurrences_are_kept_as_long_as_their_jobs, a_stale_step_writes_nothing, skipped_occurrences_are_recorded,
                a_step_can_change_the_definition,
                many_schedules_fire_in_one_call, steps_of_one_schedule_take_effect_in_their_order,
                a_unique_key_lets_one_of_many_occurrences_through, unfinished_occurrences_wait_or_run,
            ],
            documents_and_records: [
                documents_are_compare_and_set, concurrent_changes_are_not_lost, a_change_that_always_loses_is_given_up, documents_are_listed_by_name, names_of_documents_come_in_pages, documents_are_removed_by_version,
                an_expired_document_is_absent, a_put_over_an_expired_document_creates_it,
                expired_documents_are_removed_the_longest_expired_first, a_step_removes_a_bounded_number_of_expired_documents,
                records_are_read_in_order_from_a_cursor, records_are_read_from_the_newest, records_are_trimmed_from_the_oldest, heartbeats_are_kept,
                queue_limits_are_kept,
                queue_limits_are_compare_and_set,
            ],
        }
    };
    ($open:path; $($group:ident: [$($case:ident,)*],)*) => {
        $(mod $group {$(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (store, _keep) = $open().await;
                let store = $crate::conformance::build::bounded(store);
                let case = $crate::conformance::$group::$case(&store);
                $crate::conformance::within_the_time_limit(case).await;
            }
        )*})*
    };
}
