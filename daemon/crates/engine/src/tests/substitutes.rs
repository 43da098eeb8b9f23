//! Messages about bad samples and their substitutes: each file with its own reason.

use super::*;

const BAD: [(&str, &str); 2] = [("03.npy", "cut short"), ("07.npy", "not a .npy file")];

/// Ten samples, two of them bad, each with a different defect, in batches of two.
fn two_bad_of_ten(folder: &Path, seed: u64, budget: u64) -> Arc<Stream> {
    let data = folder.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let bytes = npy_bytes("<i8", false, "(4,)", &[7; 32]);
    for sample in 0..10 {
        std::fs::write(data.join(format!("{sample:02}.npy")), &bytes).unwrap();
    }
    std::fs::write(data.join(BAD[0].0), &bytes[..20]).unwrap();
    std::fs::write(data.join(BAD[1].0), "no numbers here").unwrap();
    let text = format!(
        "dataset = {{ format = \"npy\", path = \"data\", index = \"index\" }}\norder.seed = {seed}\nbatch.size = 2\n\
         errors = {{ on_bad_sample = \"substitute\", budget = {budget} }}\n\
         [[stage]]\nname = \"work\"\noperations = []\n"
    );
    open_config(read_config(folder, &text, &[]), Clock::system()).unwrap()
}

/// The substitute of a bad sample is sometimes the other bad one, with a different reason.
#[test]
fn bad_samples_beyond_the_budget_are_named_each_with_its_own_reason() {
    for seed in 0..40 {
        on_engine_thread(|| async move {
            let folder = tempfile::tempdir().unwrap();
            let engine = start(&two_bad_of_ten(folder.path(), seed, 1), 1 << 20);
            let mut client = Client::attach(&engine, false);
            let fault = client.fault().await;
            let named: Vec<_> = BAD.iter().filter(|(file, _)| fault.contains(file)).collect();
            let [(_, reason)] = named[..] else { panic!("seed {seed}: {fault}") };
            assert!(fault.contains("errors.budget") && fault.contains(reason), "{seed}: {fault}");
            engine.borrow_mut().detach(client.number, &SessionEnd::ClientLeft);
        });
    }
}

#[test]
fn statistics_list_each_bad_sample_with_its_own_reason() {
    for seed in 0..40 {
        on_engine_thread(|| async move {
            let folder = tempfile::tempdir().unwrap();
            let engine = start(&two_bad_of_ten(folder.path(), seed, 1000), 1 << 20);
            let mut client = Client::attach(&engine, false);
            for _ in 0..5 {
                let taken = client.next().await;
                client.give_back(&taken);
            }
            let listed = engine.borrow().report().sessions[0].substituted.clone();
            let first = listed.iter().filter(|one| one.epoch == 0);
            let mut files = Vec::new();
            for one in first {
                let known = BAD.iter().find(|(file, _)| one.path.ends_with(file)).unwrap();
                assert!(one.reason.contains(known.1), "seed {seed}: {one:?}");
                files.push(known.0);
            }
            files.sort_unstable();
            assert_eq!(files, BAD.map(|(file, _)| file), "seed {seed}");
            engine.borrow_mut().detach(client.number, &SessionEnd::ClientLeft);
        });
    }
}

/// The file is fine: the value of a key is too small for it.
#[test]
fn row_above_max_bytes_names_the_key_and_the_required_length() {
    on_engine_thread(|| async move {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir_all(&data).unwrap();
        for (name, rows) in [("0.npy", 4), ("1.npy", 500)] {
            let bytes = npy_bytes("<i8", false, &format!("({rows},)"), &vec![7; 8 * rows]);
            std::fs::write(data.join(name), bytes).unwrap();
        }
        let text = "dataset = { format = \"npy\", path = \"data\", index = \"index\" }\nbatch.size = 2\n\
                    [[stage]]\nname = \"work\"\noperations = []\n\
                    [output]\narray = { ragged = true, max_bytes = \"1KiB\" }\n";
        let config = read_config(folder.path(), text, &[]);
        let engine = start(&open_config(config, Clock::system()).unwrap(), 1 << 20);
        let mut client = Client::attach(&engine, false);
        let fault = client.fault().await;
        let expected = "1.npy: `array` has 4000 bytes, more than its `max_bytes` of 1024; raise output.array.max_bytes to 4000 \
                        or more; or set errors.on_bad_sample = \"substitute\"; this runs it again";
        assert!(fault.contains(expected) && !fault.contains("repair"), "{fault}");
        engine.borrow_mut().detach(client.number, &SessionEnd::ClientLeft);
    });
}
