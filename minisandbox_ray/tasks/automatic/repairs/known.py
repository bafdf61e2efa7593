"""All repairs, the order in which they are asked, and the plans that they propose together for one failure."""

from collections.abc import Iterator
from dataclasses import replace

from minisandbox_ray.tasks.automatic.plans import Plan
from minisandbox_ray.tasks.automatic.repairs import additions, builds, suite, versions
from minisandbox_ray.tasks.automatic.repairs.failure import Failure, Repair

REPAIRS: tuple[Repair, ...] = (
    builds.no_matching_version,
    builds.conflicting_requirements,
    builds.no_version,
    builds.missing_file,
    builds.no_editable_hook,
    builds.old_setuptools,
    builds.young_setuptools,
    builds.binary_instead,
    additions.missing_program,
    builds.system_package,
    builds.missing_build_module,
    builds.own_wheel,
    builds.failing_requirement,
    additions.missed_server,
    additions.qt_binding,
    additions.no_display,
    additions.unknown_option,
    additions.missing_plugins,
    additions.missing_init,
    builds.lost_parts,
    additions.missing_module,
    additions.missing_fixture,
    additions.missing_library,
    additions.look_alike,
    builds.editable_loader,
    suite.leaving_files,
    suite.settled_twice,
    suite.django_settings,
    suite.nose_fixtures,
    versions.old_pytest,
    suite.conflicting_names,
    suite.async_tests,
    additions.unknown_mark,
    suite.on_trio,
    versions.other_asyncio,
    suite.warnings_as_errors,
    additions.unset_variable,
    additions.git_identity,
    versions.rival_plugins,
    versions.pinned_pytest,
    suite.doctests,
    versions.aged_dependency,
    versions.newer_pytest,
    suite.other_directory,
    suite.missing_plugin_of_the_tree,
    suite.hopeless_conftest,
    suite.bad_configuration,
    suite.endless,
    suite.tests_apart,
    suite.out_of_reach,
)
"""In the order in which they are asked: the surest first."""


ADDING: tuple[Repair, ...] = (
    additions.missing_program,
    additions.missed_server,
    additions.missing_init,
    additions.missing_module,
    additions.missing_fixture,
    additions.missing_library,
    additions.unknown_mark,
    additions.unset_variable,
    additions.git_identity,
)
"""Those that only add something. An attempt may take minutes: what one log shows to be missing is added at once."""


def repaired(failure: Failure) -> Iterator[tuple[str, Plan]]:
    """The plans that repairs propose, with the repair's name."""
    for repair in REPAIRS:
        plan = repair(failure)
        if plan is not None:
            others = [each for each in ADDING if each is not repair] if repair in ADDING else []
            for other in others:
                plan = other(replace(failure, trial=replace(failure.trial, plan=plan))) or plan
            yield repair.__name__, plan
