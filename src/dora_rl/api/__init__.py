"""The library: what the commands do, as functions. Knows no command line; `import dora_rl` gives all of it.

entry_points   train, start, resume, dry_run                    work        what is done of a run, in steps
run_handle     a run: its metrics, report, waiting for it     prediction  simulate, plan
arguments      keywords become a recipe, and objects beside it  objects     functions, packed for the workers
loaded_models  a loaded model, a peft configuration             in_process  rewards that cannot be sent
directory      where a run leaves everything                    progress    what it says meanwhile
sampled_model  evaluate, generate: a model tried out           served_model  a model behind an endpoint
"""

from dora_rl.api.entry_points import dry_run as dry_run
from dora_rl.api.entry_points import resume as resume
from dora_rl.api.entry_points import start as start
from dora_rl.api.entry_points import train as train
from dora_rl.api.prediction import plan as plan
from dora_rl.api.prediction import simulate as simulate
from dora_rl.api.run_handle import Interrupted as Interrupted
from dora_rl.api.run_handle import Run as Run
from dora_rl.api.sampled_model import evaluate as evaluate
from dora_rl.api.sampled_model import generate as generate
