# Both start from nothing: they find Python, create .venv, install, and run. A second run installs nothing.
#   make train [ARGS="seed=1 key=value …"]     trains the quickstart
#   make test                                   ruff, mypy and the tests; by root, those of sandboxes also as nobody
#   make test-cluster                           those that start Ray clusters with `ray start`: jobs, Slurm, lost nodes

SIDE_BY_SIDE = -n 2 --dist loadgroup

.PHONY: train test test-cluster lint clean

train:
	@./setup.sh skyrl
	@.venv/bin/python -m minisandbox_ray.train config=configs/quickstart.yaml $(ARGS)

test: lint
	@.venv/bin/python -m pytest $(SIDE_BY_SIDE) -m "not cluster" $(ARGS)
	@if [ "$$(id -u)" = 0 ]; then .venv/bin/python tests/ordinary_user.py $(SIDE_BY_SIDE) $(or $(ARGS),tests/sandbox); fi

test-cluster:
	@./setup.sh dev
	@.venv/bin/python -m pytest -m cluster $(ARGS)

lint:
	@./setup.sh dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy minisandbox_ray trainer_integration

clean:
	rm -rf .venv runs build *.egg-info
