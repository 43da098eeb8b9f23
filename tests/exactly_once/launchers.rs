//! Launchers: two processes with each launcher's variables share an epoch, and what cannot be understood is refused.

use std::path::Path;
use std::process::{Child, Stdio};

use forebay_tests::taken::sorted;
use forebay_tests::{Daemon, TestDir, data, program};
use serde_json::Value;

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");

/// A launcher, the variables of one of its two processes, and the loader's `rank_source`.
type Launcher = (&'static str, &'static [(&'static str, &'static str)], &'static str);

/// `#` stands for the rank.
const LAUNCHERS: &[Launcher] = &[
    (
        "torchrun",
        &[("RANK", "#"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "#"), ("LOCAL_WORLD_SIZE", "2")],
        "RANK and WORLD_SIZE",
    ),
    (
        "Open MPI",
        &[
            ("OMPI_COMM_WORLD_RANK", "#"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "#"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_RANK", "#"),
        ],
        "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE",
    ),
    (
        "MPICH and Intel MPI",
        &[("PMI_RANK", "#"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "#"), ("MPI_LOCALNRANKS", "2")],
        "PMI_RANK and PMI_SIZE",
    ),
    (
        "PALS with PMI",
        &[
            ("PALS_RANKID", "#"),
            ("PALS_LOCAL_RANKID", "#"),
            ("PALS_LOCAL_SIZE", "2"),
            ("PMI_RANK", "#"),
            ("PMI_SIZE", "2"),
        ],
        "PMI_RANK and PMI_SIZE",
    ),
    (
        "MVAPICH2",
        &[("MV2_COMM_WORLD_RANK", "#"), ("MV2_COMM_WORLD_SIZE", "2")],
        "MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE",
    ),
    (
        "jsrun",
        &[("JSM_NAMESPACE_RANK", "#"), ("JSM_NAMESPACE_SIZE", "2")],
        "JSM_NAMESPACE_RANK and JSM_NAMESPACE_SIZE",
    ),
    (
        "Flux",
        &[
            ("FLUX_TASK_RANK", "#"),
            ("FLUX_JOB_SIZE", "2"),
            ("FLUX_TASK_LOCAL_ID", "#"),
            ("FLUX_JOB_NNODES", "1"),
            ("PMI_RANK", "#"),
            ("PMI_SIZE", "2"),
        ],
        "PMI_RANK and PMI_SIZE",
    ),
    (
        "Slurm",
        &[
            ("SLURM_PROCID", "#"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_LOCALID", "#"),
            ("SLURM_STEP_TASKS_PER_NODE", "2"),
            ("SLURM_NODEID", "0"),
        ],
        "SLURM_PROCID and SLURM_STEP_NUM_TASKS",
    ),
    (
        "SageMaker",
        &[
            ("SM_CURRENT_HOST", "algo-#"),
            ("SM_HOSTS", r#"["algo-0","algo-1"]"#),
            ("SM_NUM_GPUS", "1"),
        ],
        "SM_CURRENT_HOST and SM_HOSTS",
    ),
    (
        "a TPU pod slice",
        &[("TPU_WORKER_ID", "#"), ("TPU_WORKER_HOSTNAMES", "host-0,host-1")],
        "TPU_WORKER_ID and TPU_WORKER_HOSTNAMES",
    ),
    (
        "a Kubernetes indexed job that says how many pods it has",
        &[("JOB_COMPLETION_INDEX", "#"), ("RANK", "#"), ("WORLD_SIZE", "2")],
        "RANK and WORLD_SIZE",
    ),
    ("Horovod", &[("HOROVOD_RANK", "#"), ("HOROVOD_SIZE", "2")], "HOROVOD_RANK and HOROVOD_SIZE"),
];

fn trainer(dir: &TestDir, daemon: &Daemon, variables: &[(&str, &str)], rank: u32) -> Child {
    let mut command = dir.command(Path::new(TRAINER));
    command.args(["use=default", "epoch"]).env("FOREBAY_SOCKET", &daemon.socket);
    for (name, value) in variables {
        command.env(name, value.replace('#', &rank.to_string()));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn serve(dir: &TestDir) -> Daemon {
    data::stack(&dir.path("data"), 35);
    let keys = "batch.last = \"short\"\norder.epochs = 1";
    let config = dir.config("train.toml", &data::stack_config(&dir.path("data"), keys));
    Daemon::serve(dir, &config)
}

#[test]
fn two_processes_of_every_launcher_share_an_epoch() {
    let dir = TestDir::new();
    let daemon = serve(&dir);
    for (name, variables, source) in LAUNCHERS {
        let children = [0, 1].map(|rank| trainer(&dir, &daemon, variables, rank));
        let mut all = Vec::new();
        for (rank, child) in children.into_iter().enumerate() {
            let finished = program::finish(child);
            assert!(finished.status.success(), "{name}: {finished:?}");
            let lines = finished.json_lines();
            assert_eq!(lines[0]["rank"], rank, "{name}");
            assert_eq!(lines[0]["world_size"], 2, "{name}");
            assert_eq!(lines[0]["source"], *source, "{name}");
            let ids = lines.iter().filter_map(|line| line["ids"].as_array());
            all.extend(ids.flatten().map(|id| id.as_i64().unwrap()));
        }
        assert_eq!(sorted(all), (0..35).collect::<Vec<_>>(), "{name}");
    }
    println!("{} launchers: the ranks shared an epoch", LAUNCHERS.len());
}

#[test]
fn a_process_whose_rank_is_not_understood_is_refused_with_the_remedy() {
    let dir = TestDir::new();
    let daemon = serve(&dir);
    for variables in [
        &[("PMIX_RANK", "#")][..],
        &[("PALS_RANKID", "#"), ("PALS_LOCAL_RANKID", "#"), ("PALS_LOCAL_SIZE", "2")],
        &[("MPT_MPI_RANK", "#")],
        &[("JOB_COMPLETION_INDEX", "#")],
        &[("SM_CURRENT_HOST", "b"), ("SM_HOSTS", r#"["a","b"]"#), ("SM_NUM_GPUS", "8")],
        &[("TPU_WORKER_ID", "#")],
        &[("LOCAL_RANK", "#")],
        &[("ANOTHER_LAUNCHERS_RANK", "#")],
    ] {
        let finished = program::finish(trainer(&dir, &daemon, variables, 1));
        let name = variables[0].0;
        let error: Value = finished.json_lines().remove(0);
        let error = error["error"].as_str().unwrap_or_else(|| panic!("{name}: {finished:?}"));
        for part in [name, "looks like the rank", "give `rank` and `world_size`"] {
            assert!(error.contains(part), "{name}: {error}");
        }
    }
}
