//! One run from the first server to the last goal.

use std::io;

use bench_process::Server;
use bench_report::{Goal, Page, Verdict};

use crate::idle::{self, Once};
use crate::measure::{self, Effort};
use crate::plan::{GRPC, IDLE_NOTE, PROFILE_NOTE, Plan, RESP};
use crate::profile::Profile;
use crate::program::{self, Door};
use crate::subject::{self, Programs, REDIS, Subject, THROTTLECRAB, TIDEGATE};
use crate::tables::{Answered, Idle, idle_table};

/// A run under way.
pub(crate) struct Run {
    pub(crate) programs: Programs,
    pub(crate) effort: Effort,
    pub(crate) idle_connections: usize,
    pub(crate) page: Page,
}

impl Run {
    /// Measures everything. Servers live only while it is the turn of their door.
    pub(crate) async fn measure(mut self) -> io::Result<Page> {
        let mut goals = self.door(subject::resp(&self.programs)?, &RESP).await?;
        goals.extend(self.door(subject::grpc(&self.programs)?, &GRPC).await?);
        goals.extend(self.idle().await?);
        self.page.goals(&goals);
        Ok(self.page)
    }

    async fn door(&mut self, subjects: Vec<Subject>, plan: &Plan) -> io::Result<Vec<Goal>> {
        let mut goals = Vec::new();
        for (title, crowd) in plan.crowds {
            let answered = Answered {
                title,
                crowd,
                names: plan.names,
                yardstick: plan.yardstick,
                figures: measure::in_turns(&subjects, crowd, self.effort).await?,
            };
            let note = if goals.is_empty() { plan.note } else { "" };
            self.page.table(title, &answered.table(), note);
            let of_crowd = (plan.goals)(&answered);
            if of_crowd
                .iter()
                .any(|goal| goal.verdict() == Verdict::NotMet)
            {
                self.explain(&subjects, &answered).await?;
            }
            goals.extend(of_crowd);
        }
        Ok(goals)
    }

    /// The profile of a goal that was not met. Where there is no `perf` the page says so: the figures stand
    /// without it.
    async fn explain(&mut self, subjects: &[Subject], answered: &Answered) -> io::Result<()> {
        let mut profiles = Vec::new();
        for name in [TIDEGATE, answered.yardstick] {
            let Some(subject) = subjects.iter().find(|subject| subject.name == name) else {
                continue;
            };
            let (length, work) = (self.effort.length, &self.programs.work);
            match Profile::of(subject, answered.crowd, length, work).await {
                Ok(profile) => profiles.push((name, profile)),
                Err(error) => self.page.note(&format!("No profile of {name}: {error}.")),
            }
        }
        let halves = answered.halves(&profiles);
        if let Some((_, ours)) = profiles.iter().find(|(name, _)| *name == TIDEGATE) {
            let title = format!("{}: where the time of tidegate goes", answered.title);
            let note = format!("{halves}\n\n{PROFILE_NOTE}");
            self.page
                .table(&title, &answered.profile_table(ours), &note);
        }
        Ok(())
    }

    async fn idle(&mut self) -> io::Result<Vec<Goal>> {
        let doors = [
            self.idle_door("RESP", Door::Resp, 8.0).await?,
            self.idle_door("HTTP/1", Door::Http, 24.0).await?,
            self.idle_door("HTTP/2 (gRPC)", Door::Grpc, 64.0).await?,
        ];
        let title = format!("{} idle connections", self.idle_connections);
        let table = idle_table(&doors, &[TIDEGATE, REDIS, THROTTLECRAB]);
        self.page.table(&title, &table, IDLE_NOTE);
        Ok(doors.iter().map(Idle::goal).collect())
    }

    async fn idle_door(&self, name: &'static str, door: Door, most_kib: f64) -> io::Result<Idle> {
        let mut bytes = Vec::new();
        if let Some(program) = &self.programs.tidegate {
            let server = program::tidegate(program, door, &self.programs.work)?;
            bytes.push((
                TIDEGATE,
                self.idle_bytes(server, subject::once(door)).await?,
            ));
        }
        if door == Door::Resp {
            let server = program::redis(None)?;
            bytes.push((
                REDIS,
                self.idle_bytes(server, Once::Of(subject::incr())).await?,
            ));
        }
        if let Some(program) = &self.programs.throttlecrab {
            let server = program::throttlecrab(program, door)?;
            let once = subject::once_of_throttlecrab(door);
            bytes.push((THROTTLECRAB, self.idle_bytes(server, once).await?));
        }
        Ok(Idle {
            door: name,
            most_kib,
            bytes,
        })
    }

    async fn idle_bytes(&self, server: Server, once: Once) -> io::Result<f64> {
        idle::bytes_per_connection(&server, &once, self.idle_connections).await
    }
}
