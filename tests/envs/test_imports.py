"""Whoever feeds prompts or scores completions starts without torch."""

import subprocess
import sys


def test_nothing_here_imports_torch_or_transformers() -> None:
    script = (
        "import sys, pkgutil, importlib, dora_rl.envs as envs\n"
        "names = [m.name for m in pkgutil.walk_packages(envs.__path__, 'dora_rl.envs.')]\n"
        "for name in names: importlib.import_module(name)\n"
        "assert len(names) > 20, names\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'datasets', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)
