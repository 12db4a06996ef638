//! One run, from the first server to the last goal.

use std::io;

use bench_process::ServerProcess;
use bench_report::{Goal, Page, Verdict};

use crate::idle::{self, SingleRequest};
use crate::measure::{self, ServerEffort};
use crate::plan::{GRPC, IDLE_NOTE, PROFILE_NOTE, ProtocolPlan, RESP};
use crate::profile::ServerProfile;
use crate::program::{self, BenchProtocol};
use crate::subject::{self, REDIS, ServerPrograms, ServerSubject, THROTTLECRAB, TIDEGATE};
use crate::tables::{IdleResults, ProtocolResults, idle_table};

/// A run in progress.
pub(crate) struct ServersRun {
    pub(crate) programs: ServerPrograms,
    pub(crate) effort: ServerEffort,
    pub(crate) idle_connections: usize,
    pub(crate) page: Page,
}

impl ServersRun {
    /// Measures everything. Servers live only while their protocol is measured.
    pub(crate) async fn measure(mut self) -> io::Result<Page> {
        let mut goals = self.measure_protocol(subject::resp(&self.programs)?, &RESP).await?;
        goals.extend(self.measure_protocol(subject::grpc(&self.programs)?, &GRPC).await?);
        goals.extend(self.idle().await?);
        self.page.goals(&goals);
        Ok(self.page)
    }

    async fn measure_protocol(&mut self, subjects: Vec<ServerSubject>, plan: &ProtocolPlan) -> io::Result<Vec<Goal>> {
        let mut goals = Vec::new();
        for (title, concurrency) in plan.concurrencies {
            let results = ProtocolResults {
                title,
                concurrency,
                names: plan.names,
                reference: plan.reference,
                figures: measure::in_turns(&subjects, concurrency, self.effort).await?,
            };
            let note = if goals.is_empty() { plan.note } else { "" };
            self.page.table(title, &results.table(), note);
            let step_goals = (plan.goals)(&results);
            if step_goals.iter().any(|goal| goal.verdict() == Verdict::NotMet) {
                self.explain(&subjects, &results).await?;
            }
            goals.extend(step_goals);
        }
        Ok(goals)
    }

    /// The profile of a goal that was not met. Without `perf` the page says so: the figures are valid without
    /// it.
    async fn explain(&mut self, subjects: &[ServerSubject], results: &ProtocolResults) -> io::Result<()> {
        let mut profiles = Vec::new();
        for name in [TIDEGATE, results.reference] {
            let Some(subject) = subjects.iter().find(|subject| subject.name == name) else {
                continue;
            };
            let (length, work) = (self.effort.length, &self.programs.work);
            match ServerProfile::of(subject, results.concurrency, length, work).await {
                Ok(profile) => profiles.push((name, profile)),
                Err(error) => self.page.note(&format!("No profile of {name}: {error}.")),
            }
        }
        let halves = results.halves(&profiles);
        if let Some((_, ours)) = profiles.iter().find(|(name, _)| *name == TIDEGATE) {
            let title = format!("{}: where the time of tidegate goes", results.title);
            let note = format!("{halves}\n\n{PROFILE_NOTE}");
            self.page.table(&title, &results.profile_table(ours), &note);
        }
        Ok(())
    }

    async fn idle(&mut self) -> io::Result<Vec<Goal>> {
        let idle = [
            self.measure_idle("RESP", BenchProtocol::Resp, 8.0).await?,
            self.measure_idle("HTTP/1", BenchProtocol::Http, 24.0).await?,
            self.measure_idle("HTTP/2 (gRPC)", BenchProtocol::Grpc, 64.0).await?,
        ];
        let title = format!("{} idle connections", self.idle_connections);
        let table = idle_table(&idle, &[TIDEGATE, REDIS, THROTTLECRAB]);
        self.page.table(&title, &table, IDLE_NOTE);
        Ok(idle.iter().map(IdleResults::goal).collect())
    }

    async fn measure_idle(&self, name: &'static str, protocol: BenchProtocol, max_kib: f64) -> io::Result<IdleResults> {
        let mut bytes = Vec::new();
        if let Some(program) = &self.programs.tidegate {
            let server = program::tidegate(program, protocol, &self.programs.work)?;
            bytes.push((TIDEGATE, self.idle_bytes(server, subject::single_request(protocol)).await?));
        }
        if protocol == BenchProtocol::Resp {
            let server = program::redis(None)?;
            bytes.push((REDIS, self.idle_bytes(server, SingleRequest::Of(subject::incr())).await?));
        }
        if let Some(program) = &self.programs.throttlecrab {
            let server = program::throttlecrab(program, protocol)?;
            let request = subject::single_request_of_throttlecrab(protocol);
            bytes.push((THROTTLECRAB, self.idle_bytes(server, request).await?));
        }
        Ok(IdleResults { protocol: name, max_kib: max_kib, bytes })
    }

    async fn idle_bytes(&self, server: ServerProcess, request: SingleRequest) -> io::Result<f64> {
        idle::bytes_per_connection(&server, &request, self.idle_connections).await
    }
}
