-- All active jobs with their state.
select
    jobs.id, jobs.queue, jobs.kind, jobs.priority, jobs.run_at, jobs.extra,
    states.state, states.run_at, states.failures, states.attempt, states.claim, states.interventions
from jobs left join states on states.id = jobs.id
where states.state is null or states.state < 2
