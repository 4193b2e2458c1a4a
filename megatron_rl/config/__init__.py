"""What a run is: typed sections from YAML and the command line, every rule checked before torch is imported."""

from megatron_rl.config.load import dump_config, load_config
from megatron_rl.config.problems import Problem, ProblemCollector, UserError
from megatron_rl.config.sections import RunConfig

__all__ = ["Problem", "ProblemCollector", "RunConfig", "UserError", "dump_config", "load_config"]
