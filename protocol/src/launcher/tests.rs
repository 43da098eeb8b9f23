use super::{Environment, find_local_rank, find_ranks, find_suspect};

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().copied().collect()
}

/// A launcher's variables for a process, its rank and world size, its local rank and local world size.
type Case = (&'static str, &'static [(&'static str, &'static str)], (u32, u32), (u32, u32));

#[test]
fn variables_of_every_launcher_are_read() {
    let cases: &[Case] = &[
        (
            "torchrun",
            &[("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")],
            (5, 8),
            (1, 4),
        ),
        (
            "Open MPI",
            &[
                ("OMPI_COMM_WORLD_RANK", "3"),
                ("OMPI_COMM_WORLD_SIZE", "8"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                ("PMIX_RANK", "3"),
            ],
            (3, 8),
            (1, 2),
        ),
        (
            "MVAPICH2",
            &[
                ("MV2_COMM_WORLD_RANK", "3"),
                ("MV2_COMM_WORLD_SIZE", "8"),
                ("MV2_COMM_WORLD_LOCAL_RANK", "1"),
                ("MV2_COMM_WORLD_LOCAL_SIZE", "2"),
            ],
            (3, 8),
            (1, 2),
        ),
        (
            "MPICH and Intel MPI",
            &[
                ("PMI_RANK", "3"),
                ("PMI_SIZE", "8"),
                ("MPI_LOCALRANKID", "1"),
                ("MPI_LOCALNRANKS", "2"),
            ],
            (3, 8),
            (1, 2),
        ),
        (
            "PALS with PMI",
            &[
                ("PALS_RANKID", "3"),
                ("PALS_LOCAL_RANKID", "3"),
                ("PALS_LOCAL_SIZE", "4"),
                ("PMI_RANK", "3"),
                ("PMI_SIZE", "8"),
            ],
            (3, 8),
            (3, 4),
        ),
        (
            "jsrun",
            &[
                ("JSM_NAMESPACE_RANK", "3"),
                ("JSM_NAMESPACE_SIZE", "8"),
                ("JSM_NAMESPACE_LOCAL_RANK", "1"),
                ("JSM_NAMESPACE_LOCAL_SIZE", "2"),
            ],
            (3, 8),
            (1, 2),
        ),
        (
            "Flux",
            &[
                ("FLUX_TASK_RANK", "6"),
                ("FLUX_JOB_SIZE", "7"),
                ("FLUX_TASK_LOCAL_ID", "2"),
                ("FLUX_JOB_NNODES", "2"),
            ],
            (6, 7),
            (2, 4),
        ),
        (
            "Slurm",
            &[
                ("SLURM_STEP_NUM_TASKS", "7"),
                ("SLURM_PROCID", "6"),
                ("SLURM_LOCALID", "2"),
                ("SLURM_STEP_TASKS_PER_NODE", "2(x2),3"),
                ("SLURM_NODEID", "2"),
            ],
            (6, 7),
            (2, 3),
        ),
        (
            "Horovod",
            &[
                ("HOROVOD_RANK", "3"),
                ("HOROVOD_SIZE", "4"),
                ("HOROVOD_LOCAL_RANK", "1"),
                ("HOROVOD_LOCAL_SIZE", "2"),
            ],
            (3, 4),
            (1, 2),
        ),
        (
            "SageMaker",
            &[
                ("SM_CURRENT_HOST", "algo-2"),
                ("SM_HOSTS", r#"["algo-1", "algo-2"]"#),
                ("SM_NUM_GPUS", "1"),
            ],
            (1, 2),
            (0, 1),
        ),
        (
            "a TPU pod slice",
            &[("TPU_WORKER_ID", "2"), ("TPU_WORKER_HOSTNAMES", "a,b,c,d")],
            (2, 4),
            (0, 1),
        ),
        (
            "two TPU pod slices",
            &[
                ("TPU_WORKER_ID", "1"),
                ("TPU_WORKER_HOSTNAMES", "a,b"),
                ("MEGASCALE_SLICE_ID", "1"),
                ("MEGASCALE_NUM_SLICES", "2"),
            ],
            (3, 4),
            (0, 1),
        ),
    ];
    for (name, variables, global, local) in cases {
        let environment = environment(variables);
        let found = find_ranks(&environment).unwrap();
        assert_eq!(found.first().map(|(_, pair)| pair), Some(global), "{name}");
        assert_eq!(find_local_rank(&environment).unwrap(), *local, "{name}");
    }
}

#[test]
fn rank_without_a_world_size_is_a_suspect() {
    for (variables, name) in [
        (&[("PMIX_RANK", "3")][..], "PMIX_RANK"),
        (&[("PALS_RANKID", "3"), ("PALS_LOCAL_SIZE", "4")], "PALS_RANKID"),
        (&[("MPT_MPI_RANK", "0")], "MPT_MPI_RANK"),
        (&[("JOB_COMPLETION_INDEX", "0")], "JOB_COMPLETION_INDEX"),
        (
            &[("AWS_BATCH_JOB_NODE_INDEX", "1"), ("AWS_BATCH_JOB_NUM_NODES", "2")],
            "AWS_BATCH_JOB_NODE_INDEX",
        ),
        (&[("NODE_RANK", "0"), ("NNODES", "2")], "NODE_RANK"),
        (&[("LOCAL_RANK", "1")], "LOCAL_RANK"),
        (&[("OMPI_COMM_WORLD_RANK", "1")], "OMPI_COMM_WORLD_RANK"),
        (&[("NEW_LAUNCHER_RANK", "1"), ("NEW_LAUNCHER_SIZE", "2")], "NEW_LAUNCHER_RANK"),
        (&[("OTHER_PROCID", "1")], "OTHER_PROCID"),
        (
            &[("SM_CURRENT_HOST", "a"), ("SM_HOSTS", "[\"a\",\"b\"]"), ("SM_NUM_GPUS", "8")],
            "SM_CURRENT_HOST",
        ),
        (&[("TPU_WORKER_ID", "1")], "TPU_WORKER_ID"),
        (
            &[
                ("TPU_WORKER_ID", "0"),
                ("TPU_WORKER_HOSTNAMES", "a,b"),
                ("TPU_PROCESS_PORT", "8476"),
            ],
            "TPU_WORKER_ID",
        ),
    ] {
        let environment = environment(variables);
        assert_eq!(find_ranks(&environment).unwrap(), [], "{name}");
        let suspect = find_suspect(&environment).unwrap();
        assert_eq!(suspect.map(|suspect| suspect.name).as_deref(), Some(name));
    }
}

#[test]
fn variables_without_a_rank_are_not_suspects() {
    for variables in [
        &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")][..],
        &[("NODE_RANK", "0"), ("NNODES", "1")],
        &[("NEW_LAUNCHER_RANK", "0"), ("NEW_LAUNCHER_SIZE", "1")],
        &[("AWS_BATCH_JOB_NODE_INDEX", "0"), ("AWS_BATCH_JOB_NUM_NODES", "1")],
        &[("SM_CURRENT_HOST", "algo-1"), ("SM_HOSTS", "[\"algo-1\"]"), ("SM_NUM_GPUS", "8")],
        &[("TPU_WORKER_ID", "0"), ("TPU_WORKER_HOSTNAMES", "localhost")],
        &[("PAGERANK", "3"), ("BRANK_NAME", "1"), ("JOB_RANK", "first"), ("EMPTY_RANK", "")],
    ] {
        let environment = environment(variables);
        assert_eq!(find_ranks(&environment).unwrap(), [], "{variables:?}");
        assert_eq!(find_suspect(&environment).unwrap(), None, "{variables:?}");
    }
}

#[test]
fn invalid_value_is_named_unless_a_nearer_launcher_has_a_rank() {
    for (variables, part) in [
        (&[("RANK", "x"), ("WORLD_SIZE", "2")][..], "RANK = `x`"),
        (&[("RANK", "1")], "WORLD_SIZE is not"),
        (&[("WORLD_SIZE", "2")], "RANK is not"),
        (&[("PMI_RANK", "2"), ("PMI_SIZE", "2")], "not below"),
        (&[("TPU_WORKER_ID", "2"), ("TPU_WORKER_HOSTNAMES", "a,b")], "not below"),
        (&[("SM_CURRENT_HOST", "c"), ("SM_HOSTS", "[\"a\",\"b\"]")], "no entry for `c`"),
    ] {
        let error = find_ranks(&environment(variables)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let found = find_ranks(&environment(&[
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("SM_CURRENT_HOST", "c"),
        ("SM_HOSTS", "[\"a\",\"b\"]"),
    ]));
    assert_eq!(found.unwrap(), [("RANK and WORLD_SIZE", (1, 2))]);
}
