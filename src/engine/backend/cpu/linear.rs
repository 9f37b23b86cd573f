//! Divides linear jobs over the threads: all jobs of a call become one list of tasks, each some rows of
//! weights times some rows of x, taken from the list by whoever is free.
//!
//! How large a task is depends on the call, what a task computes for an output does not.

use std::cell::RefCell;

use super::dense::Dense;
use super::pool::Pool;
use super::scratch::{Scratch, with_buffers};
use super::{Isa, Tiles, amx};
use crate::engine::backend::host::kernels::Linear;
use crate::engine::backend::host::matrix::{Format, Matrix, Scales};

/// Rows of weights that a task of f32 arithmetic is a multiple of.
const DENSE_UNIT: usize = 4;
/// Rows of x of one f32 task: with one block of columns they fill half of a second-level cache of 2 MiB.
const DENSE_CHUNK: usize = 252;
/// Most units of one f32 task: 512 rows.
const DENSE_PANEL: usize = 128;
/// Multiply-adds below which a second thread costs more than it saves: some microseconds of work.
const INLINE: usize = 1 << 17;
/// Tasks for each thread, where there is enough work: the last ones even out what was uneven before.
const TASKS_PER_THREAD: usize = 8;

/// One job without its lifetimes, so that the list of a call can live in memory that is kept.
#[derive(Clone, Copy)]
struct View {
    w: *const Matrix,
    first_row: usize,
    rows: usize,
    count: usize,
    x: *const f32,
    y: *mut f32,
    /// Where this job's x lies in the packed inputs, for tiles.
    packed: Option<usize>,
    /// Rows of weights in a unit, units in a task, rows of x in a task.
    unit: usize,
    panel: usize,
    chunk: usize,
    /// Number of the job's first task.
    first_task: usize,
}

/// Lists of one thread's calls, kept.
#[derive(Default)]
struct Plan {
    views: Vec<View>,
    /// x tiles to pack: numbers of a job and of a tile.
    inputs: Vec<(usize, usize)>,
    packed: Scratch,
}

thread_local! {
    static PLAN: RefCell<Plan> = RefCell::default();
}

/// Runs all jobs.
pub(super) fn run(isa: Isa, tiles: Option<Tiles>, pool: &Pool, jobs: &mut [Linear<'_>]) {
    PLAN.with(|plan| match plan.try_borrow_mut() {
        Ok(mut plan) => run_with(isa, tiles, pool, jobs, &mut plan),
        // Tasks call nobody's code, so this thread cannot be here already; were it, fresh memory is as good.
        Err(_) => run_with(isa, tiles, pool, jobs, &mut Plan::default()),
    });
}

fn run_with(isa: Isa, tiles: Option<Tiles>, pool: &Pool, jobs: &mut [Linear<'_>], plan: &mut Plan) {
    plan.views.clear();
    let (mut units, mut work) = (0, 0);
    for job in jobs {
        let Some(view) = view(job, tiles.is_some()) else {
            continue;
        };
        units += view.units() * view.chunks();
        work += view.rows * job.w.cols * view.count.max(4);
        plan.views.push(view);
    }
    let mut tasks = 0;
    let panel = units / (pool.threads() * TASKS_PER_THREAD);
    for view in &mut plan.views {
        view.panel = panel.clamp(1, view.panel);
        view.first_task = tasks;
        tasks += view.tasks();
    }
    let (views, packed) = pack(tiles, pool, plan);
    let views = Shared(views, packed);
    let grain = if work < INLINE { tasks } else { 1 };
    pool.run(tasks, grain, &|task| {
        let (views, packed) = views.both();
        let at = views.partition_point(|view| view.first_task <= task) - 1;
        views[at].run(isa, tiles, packed, task - views[at].first_task);
    });
}

/// The list as threads share it.
#[derive(Clone, Copy)]
struct Shared<'a>(&'a [View], &'a [u16]);

// SAFETY: the pointers in a view are to matrices and inputs that the call borrows, which are only read,
// and to outputs of which each task writes its own part.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    fn both(&self) -> (&'a [View], &'a [u16]) {
        (self.0, self.1)
    }
}

/// Checks a job; `None` if there is nothing to do.
fn view(job: &mut Linear<'_>, has_tiles: bool) -> Option<View> {
    let w = job.w;
    check(w);
    if w.cols == 0 || job.x.is_empty() {
        assert!(
            job.x.is_empty() && job.y.is_empty(),
            "a linear job without columns or inputs has {} inputs and {} outputs",
            job.x.len(),
            job.y.len()
        );
        return None;
    }
    let count = job.x.len() / w.cols;
    assert!(
        count * w.cols == job.x.len(),
        "{} inputs are not whole rows of {}",
        job.x.len(),
        w.cols
    );
    let rows = job.y.len() / count;
    assert!(
        rows * count == job.y.len(),
        "{} outputs are not whole rows for {count} rows of inputs",
        job.y.len()
    );
    assert!(
        job.first_row <= w.rows && rows <= w.rows - job.first_row,
        "rows {}..{} of a matrix of {} rows",
        job.first_row,
        job.first_row + rows,
        w.rows
    );
    if rows == 0 {
        return None;
    }
    let mut view = View {
        w,
        first_row: job.first_row,
        rows,
        count,
        x: job.x.as_ptr(),
        y: job.y.as_mut_ptr(),
        packed: None,
        unit: DENSE_UNIT,
        panel: DENSE_PANEL,
        chunk: DENSE_CHUNK,
        first_task: 0,
    };
    if has_tiles && job.exact && amx::takes(w) {
        view.packed = Some(0);
        view.unit = amx::PAIR;
        view.panel = amx::MAX_PANEL;
        view.chunk = amx::CHUNK;
    }
    Some(view)
}

/// Panics if a matrix holds less than its shape says: all loops below read without looking.
fn check(w: &Matrix) {
    let values = w
        .rows
        .checked_mul(w.cols)
        .expect("a mapped matrix has a size");
    let bytes = match w.format {
        Format::Fp8 { .. } => values,
        Format::Fp4 { .. } => values.div_ceil(2),
        Format::Bf16 => values * 2,
        Format::F32 => values * 4,
    };
    assert!(
        w.data.len() >= bytes,
        "a matrix of {} by {} has {} bytes for {bytes}",
        w.rows,
        w.cols,
        w.data.len()
    );
    let (scales, count) = match &w.format {
        Format::Fp8 { block, scales } => {
            assert!(*block > 0, "a matrix has blocks of 0 columns");
            (scales, w.rows.div_ceil(*block) * w.cols.div_ceil(*block))
        }
        Format::Fp4 { scales } => {
            assert!(
                w.cols.is_multiple_of(32),
                "an E2M1 matrix has {} columns, not a multiple of 32",
                w.cols
            );
            (scales, w.rows * (w.cols / 32))
        }
        Format::Bf16 | Format::F32 => return,
    };
    let found = match scales {
        Scales::E8m0(bytes) => bytes.len(),
        Scales::F32(bytes) => bytes.len() / 4,
    };
    assert!(
        found >= count,
        "a matrix of {} by {} has {found} scales for {count}",
        w.rows,
        w.cols
    );
}

impl View {
    /// Units of weights: those of tiles lie at fixed rows of the matrix, the others start where the job does.
    fn units(&self) -> usize {
        let skipped = if self.packed.is_some() {
            self.first_row % self.unit
        } else {
            0
        };
        (skipped + self.rows).div_ceil(self.unit)
    }

    fn cols(&self) -> usize {
        // SAFETY: the matrix is borrowed by the call that this view belongs to.
        unsafe { (*self.w).cols }
    }

    fn chunks(&self) -> usize {
        self.count.div_ceil(self.chunk)
    }

    fn tasks(&self) -> usize {
        self.units().div_ceil(self.panel) * self.chunks()
    }

    /// Task number `task` of this job.
    fn run(&self, isa: Isa, tiles: Option<Tiles>, packed: &[u16], task: usize) {
        // SAFETY: the matrix and the inputs are borrowed by the call that this task belongs to; `view` made
        // the length of `x` from a slice.
        let (w, x) = unsafe {
            let w = &*self.w;
            (w, std::slice::from_raw_parts(self.x, self.count * w.cols))
        };
        // All chunks of x for one panel come one after the other, so that its weights may still be near.
        let (panel, chunk) = (task / self.chunks(), task % self.chunks());
        let s = chunk * self.chunk;
        let count = self.chunk.min(self.count - s);
        let skipped = if self.packed.is_some() {
            self.first_row % self.unit
        } else {
            0
        };
        // Rows of the job, counted from its first.
        let first = (panel * self.panel * self.unit).saturating_sub(skipped);
        let end = ((panel + 1) * self.panel * self.unit - skipped).min(self.rows);
        let x = &x[s * w.cols..(s + count) * w.cols];
        let y = self.y.wrapping_add(s * self.rows + first);
        with_buffers(|buffers| match (tiles, self.packed) {
            (Some(tiles), Some(at)) => {
                let part = amx::Part {
                    w,
                    rows: self.first_row + first..self.first_row + end,
                    x,
                    packed: &packed[at..],
                    job_count: self.count,
                    first_x: s,
                    y,
                    y_stride: self.rows,
                };
                // SAFETY: `view` checked matrix and rows; the outputs of these rows for these rows of x are
                // this task's alone; `pack` put this job's inputs at `at`.
                unsafe { tiles.linear(isa, part, buffers) };
            }
            _ => isa.run(Dense {
                w,
                first_row: self.first_row + first,
                rows: end - first,
                x,
                y,
                y_stride: self.rows,
                buffer: &mut buffers.weights,
                inputs: &mut buffers.inputs,
            }),
        });
    }
}

/// Brings the inputs of all jobs for tiles into their order, once for jobs that share them one after the
/// other.
fn pack<'a>(tiles: Option<Tiles>, pool: &Pool, plan: &'a mut Plan) -> (&'a [View], &'a [u16]) {
    let Some(tiles) = tiles else {
        return (&plan.views, &[]);
    };
    // Where the inputs of each job go; `inputs` lists x tiles as (job, tile).
    let (mut len, mut last) = (0, None::<View>);
    plan.inputs.clear();
    for (number, view) in plan.views.iter_mut().enumerate() {
        if view.packed.is_none() {
            continue;
        }
        let same =
            last.filter(|l| l.x == view.x && l.count == view.count && l.cols() == view.cols());
        if let Some(same) = same {
            view.packed = same.packed;
            continue;
        }
        view.packed = Some(len);
        last = Some(*view);
        let x_tiles = view.count.div_ceil(amx::columns(view.count));
        plan.inputs.extend((0..x_tiles).map(|tile| (number, tile)));
        // Each job's part starts at a whole cache line.
        len += (x_tiles * amx::tile_len(view.count, view.cols())).next_multiple_of(32);
    }
    let packed = plan.packed.take::<u16>(len);
    let out = Output(packed.as_mut_ptr());
    let views = Shared(&plan.views, &[]);
    let inputs = &plan.inputs[..];
    let grain = if len < INLINE { inputs.len() } else { 1 };
    pool.run(inputs.len(), grain, &|i| {
        let (number, tile) = inputs[i];
        let view = &views.both().0[number];
        let at = view.packed.expect("only jobs for tiles are listed");
        let tile_len = amx::tile_len(view.count, view.cols());
        // SAFETY: the call borrows the inputs, whose length `view` took from their slice; x tiles lie one
        // behind the other in this job's part of `packed`, so each is written once.
        unsafe {
            let x = std::slice::from_raw_parts(view.x, view.count * view.cols());
            let out = std::slice::from_raw_parts_mut(out.at(at + tile * tile_len), tile_len);
            amx::pack(tiles, x, view.cols(), tile, out);
        }
    });
    (&plan.views, packed)
}

/// Memory that tasks write in parts.
#[derive(Clone, Copy)]
struct Output(*mut u16);

// SAFETY: each task makes a slice of a part that no other task touches.
unsafe impl Sync for Output {}

impl Output {
    fn at(&self, index: usize) -> *mut u16 {
        self.0.wrapping_add(index)
    }
}
