"""Container-free rollouts for reinforcement learning of software-engineering agents, on Ray."""

__version__ = "0.1.0"
