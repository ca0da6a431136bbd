"""A simulated cluster on which runs are decided, bound, ended and disturbed in any order. Its scheduler knows what a real one
does: on which nodes a task may run. It may choose the worst of them, and what was promised must hold all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clusters.admission.codes import Code
from clusters.admission.decision import Snapshot, Verdict, decide
from clusters.admission.packing import Sizes as Amounts
from clusters.admission.packing import Tasks, asking, group, place
from clusters.admission.words import sentence
from clusters.clouds.drivers.base import Capacity, Node
from clusters.runs.placing.known import Known, Promise, Waiting
from clusters.runs.placing.room import snapshot

Sizes = tuple[int, int]  # GPUs and CPUs.


@dataclass
class Machine:
    size: Sizes
    up: bool = True
    others: Sizes = (0, 0)


@dataclass
class Run:
    """`layout` and `bound`: by kind of task, as tasks of several roles that ask for the same are one kind."""

    roles: tuple[Tasks, ...]
    layout: dict[Tasks, dict[str, int]] | None = None
    bound: dict[Tasks, Counter[str]] = field(default_factory=dict)
    disturbed: bool = False

    @property
    def kinds(self) -> Counter[Tasks]:
        found = Counter[Tasks]()
        for each in self.roles:
            found[kind(each)] += each.count
        return found

    @property
    def lacks(self) -> dict[Tasks, int]:
        found = {each: count - self.bound.get(each, Counter()).total() for each, count in self.kinds.items()}
        return {each: count for each, count in found.items() if count}

    def find(self, room: dict[str, Sizes], among: set[str]) -> int:
        """Takes room for what lacks a node, as far as there is any on these nodes. Returns how many tasks find none."""
        short = 0
        for each, lacks in self.lacks.items():
            for name in sorted((self.layout or {}).get(each, {}).keys() & among & room.keys()):
                while lacks and room[name][0] >= each.gpus and room[name][1] >= each.cpu_milli:
                    room[name], lacks = (room[name][0] - each.gpus, room[name][1] - each.cpu_milli), lacks - 1
            short += lacks
        return short

    @property
    def endangers_itself(self) -> bool:
        """Tasks of one kind may take what is meant for those of another, on a node that they share (`packing.assign`)."""
        laid = [set(nodes) for nodes in (self.layout or {}).values()]
        return any(one & two and max(len(one), len(two)) > 1 for one in laid for two in laid if one is not two)


def kind(tasks: Tasks) -> Tasks:
    return replace(tasks, role="", count=1)


# Few sizes, so that runs meet on nodes.
role = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 0, 3]), st.integers(0, 2)).filter(
    lambda each: each[1] or each[2]
)
machine = st.tuples(st.sampled_from([4, 5, 2, 0]), st.sampled_from([8, 4, 2]))


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machines: dict[str, Machine] = {}
        self.runs: dict[int, Run] = {}
        self.newest = 0
        self.calm = self.plain = False

    @initialize(sizes=st.lists(machine, min_size=1, max_size=3), calm=st.booleans(), plain=st.booleans())
    def build(self, sizes: list[Sizes], calm: bool, plain: bool) -> None:
        """`calm`: nothing disturbs the runs. `plain`: they have one role, and only GPUs are scarce."""
        self.machines = {
            f"n{number}": Machine((gpus, 64 if plain else cpus)) for number, (gpus, cpus) in enumerate(sizes)
        }
        self.calm, self.plain = calm, plain

    @rule(asked=st.lists(role, min_size=1, max_size=2))
    def submit(self, asked: list[tuple[int, int, int]]) -> None:
        if self.plain:
            asked = [(count, gpus or 1, 0) for count, gpus, _ in asked[:1]]
        roles = (asking(f"r{n}", count, gpus, "", cpus) for n, (count, gpus, cpus) in enumerate(asked))
        self.newest += 1
        self.runs[self.newest] = Run(tuple(roles))
        self.look()

    @rule()
    def look(self) -> None:
        """A pass: gives places to the runs that may start."""
        found = self.snapshot()
        verdicts = decide(found)
        self.check(found, verdicts)
        promised = Counter[tuple[str, int]]()
        for name, verdict in verdicts.items():
            if verdict.code is not Code.FITS:
                continue
            run, layout = self.runs[int(name)], dict[Tasks, dict[str, int]]()
            kinds = {each.role: kind(each) for each in run.roles}
            assert verdict.nodes is not None
            for (of, node), count in verdict.nodes.items():
                layout.setdefault(kinds[of], {})[node] = count
                for resource, amount in enumerate(sizes_of(kinds[of])):
                    promised[node, resource] += count * amount
            assert all(sum(layout[each].values()) >= count for each, count in run.kinds.items()), "all tasks, or none"
            run.layout = layout
        for each in found.nodes:
            for resource, amount in enumerate((each.free.gpus, each.free.cpu_milli)):
                assert promised[each.name, resource] <= (amount if each.ready else 0)

    @precondition(lambda self: any(run.layout and run.lacks for run in self.runs.values()))
    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        """The scheduler binds any pods of any placed run to any of its nodes that have room."""
        number = data.draw(st.sampled_from([pk for pk, run in self.runs.items() if run.layout and run.lacks]))
        run = self.runs[number]
        assert run.layout
        for _ in range(data.draw(st.sampled_from([1, 2, 8]))):
            if not run.lacks:
                break
            each = data.draw(st.sampled_from(list(run.lacks)))
            able = [node for node in run.layout[each] if self.has_room(node, each)]
            if not able:
                assert run.disturbed or run.endangers_itself, f"run {number} was promised room, and has none"
                run.layout, run.bound, run.disturbed = None, {}, False
                break
            run.bound.setdefault(each, Counter())[data.draw(st.sampled_from(able))] += 1
        if not run.lacks:
            run.layout, run.disturbed = {each: dict(nodes) for each, nodes in run.bound.items()}, False

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        del self.runs[data.draw(st.sampled_from(sorted(self.runs)))]
        self.look()

    @precondition(lambda self: not self.calm)
    @rule(data=st.data())
    def turn_off_or_on(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.machines)))
        self.machines[name].up = not self.machines[name].up
        self.disturb(name)

    @precondition(lambda self: not self.calm)
    @rule(data=st.data())
    def strangers_come_or_go(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.machines)))
        node = self.machines[name]
        before, room = node.others, self.room(name)
        gpus, cpus = (data.draw(st.integers(0, before[n] + max(0, room[n]))) for n in (0, 1))
        node.others = (gpus, cpus)
        if gpus > before[0] or cpus > before[1]:
            self.disturb(name)

    @invariant()
    def no_node_holds_more_than_it_has(self) -> None:
        assert all(min(self.room(name)) >= 0 for name in self.machines)

    @invariant()
    def every_run_finds_its_room_even_if_all_others_come_first(self) -> None:
        for pk, run in self.runs.items():
            if not run.layout or run.disturbed or run.endangers_itself:
                continue
            room = {name: self.room(name) for name, each in self.machines.items() if each.up}
            mine = {name for nodes in run.layout.values() for name in nodes}
            for other in self.runs.values():
                if other is not run:
                    other.find(room, mine)
            assert not run.find(room, mine), f"run {pk} was promised room, and may find none"

    def disturb(self, name: str) -> None:
        for run in self.runs.values():
            run.disturbed |= any(name in nodes for nodes in (run.layout or {}).values())

    def room(self, name: str) -> Sizes:
        node, (gpus, cpus) = self.machines[name], (0, 0)
        for run in self.runs.values():
            for each, nodes in run.bound.items():
                gpus, cpus = gpus + each.gpus * nodes[name], cpus + each.cpu_milli * nodes[name]
        return node.size[0] - node.others[0] - gpus, node.size[1] - node.others[1] - cpus

    def has_room(self, name: str, tasks: Tasks) -> bool:
        gpus, cpus = self.room(name)
        return self.machines[name].up and gpus >= tasks.gpus and cpus >= tasks.cpu_milli

    def snapshot(self) -> Snapshot:
        nodes = [
            Node(
                name, "X", each.size[0], 0, each.size[1], 0,
                takes_tasks=each.up, gpus_others=each.others[0], cpu_milli_others=each.others[1],
            )
            for name, each in self.machines.items()
        ]  # fmt: skip
        taken: dict[str, Amounts] = {}
        for run in self.runs.values():
            for each, bound in run.bound.items():
                for name, count in bound.items():
                    held = Amounts(count * each.gpus, count * each.cpu_milli)
                    taken[name] = taken.get(name, Amounts()) + held
        waiting = [Waiting(pk, run.roles) for pk, run in self.runs.items() if run.layout is None]
        return snapshot(Known(Capacity(tuple(nodes)), taken, list(self.promises()), waiting))

    def promises(self) -> Iterator[Promise]:
        for pk, run in self.runs.items():
            for each, lacks in run.lacks.items() if run.layout else ():
                assert run.layout
                bound = run.bound.get(each, Counter())
                left = {name: max(0, count - bound[name]) for name, count in run.layout[each].items()}
                yield Promise(pk, each, bound.total(), lacks, left)

    def check(self, found: Snapshot, verdicts: dict[str, Verdict]) -> None:
        assert decide(replace(found, nodes=found.nodes[::-1])) == verdicts
        empty = group((node.name, node.whole) for node in found.nodes)
        ranks = []
        for ask in found.asks:
            verdict = verdicts[ask.run]
            assert sentence(verdict).endswith(".")
            if place(ask.tasks, empty) is not None:
                assert verdict.code.fits != "never"
            if verdict.rank:
                ranks.append(verdict.rank)
            assert (verdict.rank > 0) == (verdict.code.fits == "waits")
        assert ranks == list(range(1, len(ranks) + 1))
        unused = all(each.up and each.others == (0, 0) for each in self.machines.values())
        if unused and not any(run.layout for run in self.runs.values()):
            able = [verdict.code for verdict in verdicts.values() if verdict.code.fits != "never"]
            assert able[:1] in ([], [Code.FITS]), "nothing is in the way of the first"


def sizes_of(tasks: Tasks) -> Sizes:
    return tasks.gpus, tasks.cpu_milli


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=300, stateful_step_count=25)
