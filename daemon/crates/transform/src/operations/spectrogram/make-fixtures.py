"""Makes the spectrograms of `tests.rs`: `python3 make-fixtures.py` with torchaudio 2.11, into `fixtures/`."""

import pathlib

import torch
import torchaudio.transforms as transforms

sound = torch.tensor([((n * 1103515245 + 12345) % 2**31 // 128) / 2**24 - 0.5 for n in range(1600)])
mel = transforms.MelSpectrogram
MADE = {
    "plain": transforms.Spectrogram(),
    "magnitude": transforms.Spectrogram(n_fft=128, win_length=100, hop_length=60, power=1.0, center=False),
    "mel": mel(16000, n_fft=400, n_mels=40),
    "mel-slaney": mel(
        22050,
        n_fft=512,
        win_length=500,
        hop_length=200,
        n_mels=24,
        f_min=50.0,
        f_max=8000.0,
        norm="slaney",
        mel_scale="slaney",
        power=1.0,
    ),
}
folder = pathlib.Path(__file__).parent / "fixtures"
folder.mkdir(exist_ok=True)
for name, transform in MADE.items():
    made = transform(sound).T.contiguous()
    print(name, tuple(made.shape))
    (folder / f"{name}.f32").write_bytes(made.numpy().astype("<f4").tobytes())
