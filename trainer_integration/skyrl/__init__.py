"""SkyRL bridge: its own trainer over our episodes, on a CPU or on GPUs. Start at ``bridge.run``."""
