//! Which work goes into the next step: a pure function of what runs, what waits and what is free.
//!
//! In: a [`View`] of the sequences and the pools. Out: a [`Plan`]: whom to take the memory from, whom to admit,
//! which rows to run. No clock, no device, no lock; equal views give equal plans. Cost: a sort of what runs and
//! a scan of what waits for each admission; scratch memory is reused.
//!
//! The rules are those of `engine.md` section 6: rows that decode are charged first and prompts take the rest of
//! the budget in chunks that end on block borders; blocks are taken for the next chunk only; when they run out
//! the youngest gives way and the most senior never does, so every sequence ends. Newcomers go by class and
//! arrival; waiting long, or being overtaken too often, takes one to the head of the line.

#![forbid(unsafe_code)]

/// What does not change while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows in a step.
    pub tokens: u32,
    /// Sequences in a step, and running at once but for paused ones.
    pub sequences: u32,
    /// Rows of one prompt in a step while others wait; a multiple of the block size.
    pub chunk: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks that only running sequences may use.
    pub reserve: u32,
    /// Blocks that must stay free beyond a newcomer's first chunk.
    pub lookahead: u32,
    /// How often smaller ones may go before one that does not fit yet; 0 is strict order.
    pub overtake_limit: u32,
    /// After so many preemptions a sequence is chosen only after all others.
    pub max_preemptions: u32,
    /// Chunk borders depend on the prompt only, never on the load.
    pub fixed_chunks: bool,
}

impl Limits {
    /// The smallest `tokens` with which the first prompt in line always moves on beside a full set of decode
    /// rows.
    pub fn least_tokens(&self) -> u32 {
        let part = if self.fixed_chunks {
            self.chunk
        } else {
            self.block_tokens
        };
        self.sequences.saturating_add(part)
    }

    fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_tokens)
    }

    /// Rows of a prompt from `position` on, of `remaining`, at most `limit`; 0 when not even a block fits.
    fn chunk_at(&self, position: u32, remaining: u32, limit: u32) -> u32 {
        if self.fixed_chunks {
            let border = (position / self.chunk + 1) * self.chunk;
            let count = remaining.min(border - position);
            return if count <= limit { count } else { 0 };
        }
        if remaining <= limit {
            return remaining;
        }
        let end = (position.saturating_add(limit)) / self.block_tokens * self.block_tokens;
        end.saturating_sub(position)
    }
}

/// A sequence that holds a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// 0 goes first.
    pub class: u8,
    /// Unique; smaller is senior within a class.
    pub arrival: u64,
    /// Tokens known: prompt and output.
    pub length: u32,
    /// Tokens whose rows have run; below `length`.
    pub computed: u32,
    /// Blocks held.
    pub blocks: u32,
    /// Its reader has no room for another token: it waits, and is the first to give way.
    pub is_paused: bool,
    /// How often it gave way.
    pub preemptions: u32,
}

impl Running {
    fn remaining(&self) -> u32 {
        self.length - self.computed
    }

    fn is_prefilling(&self) -> bool {
        self.remaining() > 1 || self.computed == 0
    }

    fn seniority(&self) -> (u8, u64) {
        (self.class, self.arrival)
    }
}

/// A sequence that holds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// 0 goes first.
    pub class: u8,
    /// Unique; kept over preemptions.
    pub arrival: u64,
    /// Tokens known: prompt, and output from before a preemption.
    pub length: u32,
    /// Waited long enough to go before all classes.
    pub is_starved: bool,
    /// How often others went before it.
    pub overtaken: u32,
    /// Not admitted before its reader took some.
    pub is_paused: bool,
    /// Gave way before: comes back when the whole of it fits.
    pub was_preempted: bool,
}

impl Waiting {
    /// Nobody goes before it any more.
    fn is_due(&self, limits: &Limits) -> bool {
        self.is_starved || self.overtaken >= limits.overtake_limit
    }

    /// Starved ones by arrival, then the others by class and arrival. One that was overtaken too often is
    /// starved; where nobody overtakes, order alone never makes one so.
    fn order(&self, limits: &Limits) -> (bool, u8, u64) {
        let is_first = self.is_starved || (limits.overtake_limit > 0 && self.is_due(limits));
        if is_first {
            (false, 0, self.arrival)
        } else {
            (true, self.class, self.arrival)
        }
    }
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Holders of slots, in any order.
    pub running: &'a [Running],
    /// The others, in any order.
    pub waiting: &'a [Waiting],
    /// Blocks nobody holds.
    pub free_blocks: u32,
    /// Slots nobody holds.
    pub free_slots: u32,
}

/// Whose rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Index in [`View::running`].
    Running(usize),
    /// Index in [`Plan::admit`].
    Admitted(usize),
}

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Whose.
    pub source: Source,
    /// Of the first row.
    pub position: u32,
    /// How many.
    pub count: u32,
    /// Blocks to take before they run.
    pub new_blocks: u32,
}

/// What to do, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Indices in [`View::running`]: give back blocks and slot, wait again.
    pub preempt: Vec<usize>,
    /// Indices in [`View::waiting`]: take a slot.
    pub admit: Vec<usize>,
    /// Indices in [`View::waiting`], once for each that went before it.
    pub overtaken: Vec<usize>,
    /// Rows of the step.
    pub rows: Vec<Rows>,
}

/// Makes plans; holds nothing but limits and scratch memory.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    order: Vec<usize>,
    is_victim: Vec<bool>,
    victims: Vec<usize>,
    /// Admitted or passed over.
    is_seen: Vec<bool>,
    passed: Vec<usize>,
}

impl Scheduler {
    /// For an engine of these limits.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            order: Vec::new(),
            is_victim: Vec::new(),
            victims: Vec::new(),
            is_seen: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Writes the next plan to `plan`.
    pub fn plan(&mut self, view: View<'_>, plan: &mut Plan) {
        plan.preempt.clear();
        plan.admit.clear();
        plan.overtaken.clear();
        plan.rows.clear();
        self.is_victim.clear();
        self.is_victim.resize(view.running.len(), false);
        let mut pass = Pass::new(&self.limits, view);
        self.run(view, &mut pass, plan);
        if plan.preempt.is_empty() {
            self.admit(view, &mut pass, plan);
        }
    }

    /// Rows of those that run, seniors first.
    fn run(&mut self, view: View<'_>, pass: &mut Pass, plan: &mut Plan) {
        self.order.clear();
        self.order
            .extend((0..view.running.len()).filter(|&i| !view.running[i].is_paused));
        self.order
            .sort_unstable_by_key(|&i| view.running[i].seniority());
        for at in 0..self.order.len() {
            let index = self.order[at];
            if self.is_victim[index] || pass.seats == 0 {
                continue;
            }
            let own = &view.running[index];
            let Some(rows) = self.rows_for(view, index, pass, plan) else {
                continue;
            };
            pass.seats -= 1;
            pass.free_blocks -= rows.new_blocks;
            if own.remaining() > 1 {
                pass.prefill_tokens -= rows.count;
            }
            plan.rows.push(rows);
        }
    }

    /// The rows of one running sequence, making room for them if that is allowed and pays.
    fn rows_for(
        &mut self,
        view: View<'_>,
        index: usize,
        pass: &mut Pass,
        plan: &mut Plan,
    ) -> Option<Rows> {
        let limits = self.limits;
        let own = &view.running[index];
        let rows = |count: u32| Rows {
            source: Source::Running(index),
            position: own.computed,
            count,
            new_blocks: limits
                .blocks_for(own.computed + count)
                .saturating_sub(own.blocks),
        };
        let is_decoding = own.remaining() == 1;
        let mut wanted = if is_decoding {
            rows(1)
        } else {
            let limit = pass.chunk_limit();
            rows(limits.chunk_at(own.computed, own.remaining(), limit))
        };
        if wanted.count == 0 {
            return None;
        }
        if wanted.new_blocks <= pass.free_blocks {
            return Some(wanted);
        }
        if !is_decoding && !limits.fixed_chunks {
            // A smaller chunk before somebody else loses work; one block at least.
            let blocks = own.blocks + pass.free_blocks.max(1);
            let room = blocks.saturating_mul(limits.block_tokens) - own.computed;
            let smaller = limits.chunk_at(own.computed, own.remaining(), room.min(wanted.count));
            wanted = rows(smaller);
            if smaller == 0 {
                return None;
            }
            if wanted.new_blocks <= pass.free_blocks {
                return Some(wanted);
            }
        }
        let short = wanted.new_blocks - pass.free_blocks;
        let may_yield = |other: &Running| other.is_paused || other.seniority() > own.seniority();
        self.make_room(view, short, false, may_yield, pass, plan)
            .then_some(wanted)
    }

    /// Preempts as few as cover the shortage, or nobody if that is not enough.
    fn make_room(
        &mut self,
        view: View<'_>,
        blocks: u32,
        slot: bool,
        may_yield: impl Fn(&Running) -> bool,
        pass: &mut Pass,
        plan: &mut Plan,
    ) -> bool {
        let max_preemptions = self.limits.max_preemptions;
        self.victims.clear();
        self.victims.extend((0..view.running.len()).filter(|&i| {
            let other = &view.running[i];
            !self.is_victim[i] && (other.blocks > 0 || slot) && may_yield(other)
        }));
        // Paused before the rest, then those not pinned, the lowest class, prompts, the latest.
        self.victims.sort_unstable_by_key(|&i| {
            let other = &view.running[i];
            (
                !other.is_paused,
                other.preemptions >= max_preemptions,
                std::cmp::Reverse(other.class),
                !other.is_prefilling(),
                std::cmp::Reverse(other.arrival),
            )
        });
        let mut freed = 0;
        let enough = self.victims.iter().position(|&i| {
            freed += view.running[i].blocks;
            freed >= blocks
        });
        let Some(last) = enough else {
            return false;
        };
        self.victims.truncate(last + 1);
        // The first ones may have become superfluous.
        let mut spare = freed - blocks;
        let mut left = self.victims.len();
        self.victims.retain(|&i| {
            let held = view.running[i].blocks;
            if held > spare || left == 1 {
                return true;
            }
            spare -= held;
            left -= 1;
            false
        });
        for &i in &self.victims {
            self.is_victim[i] = true;
            pass.free_blocks += view.running[i].blocks;
            pass.free_slots += 1;
            plan.preempt.push(i);
        }
        true
    }

    /// Newcomers, the best first. One that lacks blocks is overtaken by smaller ones up to its limit; one that is
    /// due stops the line, and what becomes free is kept for it.
    fn admit(&mut self, view: View<'_>, pass: &mut Pass, plan: &mut Plan) {
        let limits = self.limits;
        self.is_seen.clear();
        self.is_seen.resize(view.waiting.len(), false);
        self.passed.clear();
        while pass.seats > 0 && pass.places > 0 && pass.prefill_tokens > 0 {
            let best = (0..view.waiting.len())
                .filter(|&i| !self.is_seen[i] && !view.waiting[i].is_paused)
                .min_by_key(|&i| view.waiting[i].order(&limits));
            let Some(index) = best else {
                return;
            };
            let own = &view.waiting[index];
            let count = limits.chunk_at(0, own.length, pass.chunk_limit());
            if count == 0 {
                return;
            }
            let need = limits.blocks_for(count);
            let must_be_free = if pass.is_empty {
                // Nothing stops the senior one.
                need
            } else {
                let whole = limits.blocks_for(own.length.saturating_add(1));
                let seen = if own.was_preempted { whole } else { need };
                seen.saturating_add(limits.lookahead)
                    .saturating_add(limits.reserve)
            };
            let short = must_be_free.saturating_sub(pass.free_blocks);
            let no_slot = pass.free_slots == 0;
            if (short > 0 || no_slot)
                && !self.make_room(view, short, no_slot, |other| other.is_paused, pass, plan)
            {
                if no_slot || own.is_due(&limits) {
                    return;
                }
                self.is_seen[index] = true;
                self.passed.push(index);
                continue;
            }
            pass.seats -= 1;
            pass.places -= 1;
            pass.free_slots -= 1;
            pass.free_blocks -= need;
            pass.prefill_tokens -= count;
            pass.is_empty = false;
            self.is_seen[index] = true;
            plan.overtaken.extend_from_slice(&self.passed);
            plan.rows.push(Rows {
                source: Source::Admitted(plan.admit.len()),
                position: 0,
                count,
                new_blocks: need,
            });
            plan.admit.push(index);
            let is_enough = |&i: &usize| {
                let now = plan.overtaken.iter().filter(|&&o| o == i).count() as u32;
                view.waiting[i].overtaken + now >= limits.overtake_limit
            };
            if self.passed.iter().any(is_enough) {
                return;
            }
        }
    }
}

/// What is left during one pass.
struct Pass {
    free_blocks: u32,
    free_slots: u32,
    /// Sequences that can still get rows.
    seats: u32,
    /// Sequences that can still join those that run.
    places: u32,
    prefill_tokens: u32,
    /// Rows of one prompt.
    share: u32,
    /// Nobody runs who could finish and free something.
    is_empty: bool,
}

impl Pass {
    fn new(limits: &Limits, view: View<'_>) -> Self {
        let active = || view.running.iter().filter(|r| !r.is_paused);
        let decoding = active().filter(|r| r.remaining() == 1).count() as u32;
        let prompts = active().filter(|r| r.remaining() > 1).count() + view.waiting.len();
        let share = if limits.fixed_chunks {
            limits.chunk
        } else if prompts <= 1 {
            limits.tokens
        } else {
            limits.chunk.max(limits.tokens / prompts as u32)
        };
        Self {
            free_blocks: view.free_blocks,
            free_slots: view.free_slots,
            seats: limits.sequences,
            places: limits.sequences.saturating_sub(active().count() as u32),
            prefill_tokens: limits.tokens.saturating_sub(decoding.min(limits.sequences)),
            share,
            is_empty: active().count() == 0,
        }
    }

    fn chunk_limit(&self) -> u32 {
        self.share.min(self.prefill_tokens)
    }
}

#[cfg(test)]
mod tests;
