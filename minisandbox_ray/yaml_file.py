"""A YAML file that a person wrote, as one of our models."""

from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from minisandbox_ray.errors import ConfigError, first_wrong


def read_model[Model: BaseModel](path: Path, model: type[Model]) -> Model:
    """The file's content. Raises ConfigError, one line, if it cannot be read or is not what the model says."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return model.model_validate(content)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        article = "an" if model.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"{path} is not {article} {model.__name__}: {first_wrong(error, 'the file')}") from error
