//! A store around another store: a layer writes the verbs that it changes, and the rest pass
//! through its `around`.

/// Implements `Store` for a layer with the methods `inner` and `around`. The given verbs replace
/// the ones that would be passed on.
macro_rules! store_layer {
    (impl Store for $layer:ty { $($own:tt)* }) => {
        $crate::store_layer::store_layer! {
            @all $layer { $($own)* }
            due_queues(look: &windlass_store::DueQueues, now: windlass_core::Timestamp) -> Vec<windlass_core::QueueName>;
            get(jobs: &[windlass_core::JobId]) -> Vec<Option<windlass_core::Job>>;
            list(filter: &windlass_store::Filter, page: windlass_store::Page, now: windlass_core::Timestamp) -> windlass_store::Listed;
            counts(now: windlass_core::Timestamp) -> std::collections::BTreeMap<windlass_core::QueueName, windlass_store::Counts>;
            failure_groups(filter: &windlass_store::GroupFilter, after: Option<&windlass_core::GroupKey>, limit: usize, now: windlass_core::Timestamp) -> Vec<windlass_store::FailureGroup>;
            action_tally(action: windlass_core::ActionId) -> windlass_core::ActionTally;
            trim_tallies(groups_before: windlass_core::Timestamp, actions_before: windlass_core::Timestamp) -> ();
            drop_history(before: windlass_core::Timestamp) -> usize;
            queues() -> std::collections::BTreeMap<windlass_core::QueueName, windlass_store::QueueLimits>;
            remove_schedule(schedule: windlass_core::ScheduleId, expected: windlass_store::Expected) -> windlass_store::Written;
            schedule(which: &windlass_store::ScheduleRef) -> Option<windlass_store::Schedule>;
            schedules() -> windlass_store::Schedules;
            due(limit: usize, now: windlass_core::Timestamp) -> Vec<windlass_store::Schedule>;
            occurrences(schedule: windlass_core::ScheduleId, before: Option<windlass_core::Timestamp>, limit: usize) -> Vec<windlass_store::FiredOccurrence>;
            unfinished_occurrences(schedules: &[windlass_core::ScheduleId]) -> Vec<Vec<windlass_core::Job>>;
            put_document(collection: &str, name: &str, value: &serde_json::Value, expected: windlass_store::Expected, expires_at: Option<windlass_core::Timestamp>, now: windlass_core::Timestamp) -> windlass_store::Written;
            remove_document(collection: &str, name: &str, expected: windlass_store::Expected) -> windlass_store::Written;
            document(collection: &str, name: &str, now: windlass_core::Timestamp) -> Option<windlass_store::Document>;
            documents(collection: &str, now: windlass_core::Timestamp) -> Vec<windlass_store::Document>;
            document_names(collection: &str, after: &str, limit: usize, now: windlass_core::Timestamp) -> Vec<String>;
            remove_expired(limit: usize, now: windlass_core::Timestamp) -> usize;
            append(topic: &str, values: &[serde_json::Value], now: windlass_core::Timestamp) -> ();
            records(topic: &str, range: windlass_store::RecordRange, limit: usize) -> Vec<windlass_store::Record>;
            trim(topic: &str, before: windlass_core::Timestamp, limit: usize) -> usize;
            beat(name: &str, about: &serde_json::Value, now: windlass_core::Timestamp) -> ();
            nodes() -> Vec<windlass_store::Node>;
            remove_node(name: &str) -> ();
            time() -> Option<windlass_core::Timestamp>;
        }
    };
    (@all $layer:ty { $($own:tt)* } $($verb:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        #[async_trait::async_trait]
        impl windlass_store::Store for $layer {
            $($own)*
            $(async fn $verb(&self $(, $argument: $of)*) -> Result<$answer, windlass_store::StoreError> {
                let call = self.inner().$verb($($argument),*);
                self.around(stringify!($verb), call).await
            })*
        }
    };
}

pub(crate) use store_layer;
