"""``python -m minisandbox_ray VERB …``"""

import sys

from minisandbox_ray.cli.main import main

sys.exit(main())
