"""Users' scripts: each in a process of its own, with limits, out of reach of everything else."""
