"""Mutations of the shells: claims, tables, the worker, steps, and ingest."""

from tests.mutants.mutation import Mutation

CLAIMS = "pvbus/runtime/claims.py"
TABLES = "pvbus/runtime/tables.py"
INTAKE = "pvbus/runtime/intake.py"
WORKER = "pvbus/runtime/worker.py"
STEPPING = "pvbus/runtime/stepping.py"
RETRIES = "pvbus/runtime/retries.py"
TIMERS = "pvbus/runtime/timers.py"
INGEST = "pvbus/runtime/ingest.py"
KINDWATCH = "pvbus/runtime/kindwatch.py"
M = Mutation

SHELL: tuple[Mutation, ...] = (
    # ---------------------------------------------------------------- claims
    M(
        "may-write-always",
        CLAIMS,
        "return is_ours and now - max(membership.last_heartbeat(), self.last_step) <= seconds",
        "return True",
    ),
    M(
        "may-write-of-another-epoch",
        CLAIMS,
        "is_ours = membership.claims().get(self.claim.partition) == self.claim",
        "is_ours = self.claim.partition in membership.claims()",
    ),
    M(
        "may-write-after-a-late-heartbeat",
        CLAIMS,
        "now - max(membership.last_heartbeat(), self.last_step) <= seconds",
        "now - max(membership.last_heartbeat(), self.last_step) <= 4 * seconds",
    ),
    M(
        "may-write-in-doubt",
        CLAIMS,
        "if membership is None or self.revoked or self.doubt.is_set():",
        "if membership is None or self.revoked:",
    ),
    M(
        "mark-of-a-busy-key-lost",
        CLAIMS,
        "        if key not in self.dirty:\n            self.dirty.add(key)",
        "        if key not in self.dirty and key not in self.busy:\n            self.dirty.add(key)",
    ),
    M(
        "busy-key-runs-twice",
        CLAIMS,
        "            if key not in self.busy:\n                self._queue.append(key)",
        "            self._queue.append(key)",
    ),
    M(
        "busy-counts-as-done",
        CLAIMS,
        "if key in self.dirty or (key in self.busy and key not in finishing):",
        "if key in self.dirty:",
    ),
    M(
        "dirty-counts-as-done",
        CLAIMS,
        "if key in self.dirty or (key in self.busy and key not in finishing):",
        "if key in self.busy and key not in finishing:",
    ),
    M(
        "finishing-key-blocks-offsets",
        CLAIMS,
        "(key in self.busy and key not in finishing)",
        "(key in self.busy)",
    ),
    M(
        "step-without-a-limit-of-bytes",
        CLAIMS,
        "if count and (more > self._limits.records or larger > self._limits.bytes):",
        "if count and more > self._limits.records:",
    ),
    M(
        "acts-before-restored",
        CLAIMS,
        "return self.restored and not self.revoked and not self.doubt.is_set()",
        "return not self.revoked and not self.doubt.is_set()",
    ),
    M(
        "acts-while-revoked",
        CLAIMS,
        "return self.restored and not self.revoked and not self.doubt.is_set()",
        "return self.restored and not self.doubt.is_set()",
    ),
    M(
        "settled-with-rows-waiting",
        CLAIMS,
        "return self.restored and not (self.doubt.is_set() or self.busy or self.puts or self.stepping)",
        "return self.restored and not (self.doubt.is_set() or self.busy)",
    ),
    # ---------------------------------------------------------------- tables
    M(
        "kept-tables-of-any-epoch",
        TABLES,
        "if opened.claim.epoch == kept.claim.epoch + 1 and kept.away.seconds <= KEEP_SECONDS:",
        "if kept.away.seconds <= KEEP_SECONDS:",
    ),
    M(
        "kept-tables-of-any-age",
        TABLES,
        "if opened.claim.epoch == kept.claim.epoch + 1 and kept.away.seconds <= KEEP_SECONDS:",
        "if opened.claim.epoch == kept.claim.epoch + 1:",
    ),
    M("kept-though-not-settled", TABLES, "is_kept = keep and opened.is_settled", "is_kept = keep"),
    M(
        "restored-without-broadcast",
        TABLES,
        "        await self._broadcast_ready.wait()\n        await self.intake.wait_for({place: ends[place] for place in broadcast})",
        "        pass",
    ),
    M("kept-dirty-keys-forgotten", TABLES, "            dirty = kept.dirty\n", "            dirty = ()\n"),
    M(
        "catch-up-of-one-partition",
        TABLES,
        "if topic in self.controller.broadcast:\n                places += self._whole((topic,))",
        "if topic in self.controller.broadcast:\n                places += self._own((topic,), opened.claim.partition)",
    ),
    M(
        "behind-for-too-long-goes-on",
        INTAKE,
        "if self.positions and self._fresh.seconds > self._stale_seconds:",
        "if False:",
    ),
    M("slow-replay-is-believed", INTAKE, "if begun.seconds > self._stale_seconds:", "if False:"),
    # ---------------------------------------------------------------- worker, steps
    M("no-pause-at-429", WORKER, "self._paused_until = max(self._paused_until, until)", "pass"),
    M(
        "write-without-a-lease",
        WORKER,
        "if isinstance(effect, WRITES) and not opened.may_write(",
        "if False and not opened.may_write(",
    ),
    M("unknown-step-believed", STEPPING, "            opened.doubt.set()\n", ""),
    M(
        "tables-take-over-before-the-step",
        STEPPING,
        "        for outcome in batch:\n            self._tables.store(opened, outcome.puts)\n            opened.done(outcome.key)",
        "        for outcome in batch:\n            opened.done(outcome.key)",
    ),
    M(
        "backoff-without-a-limit",
        RETRIES,
        "ceiling = min(most, least * 2.0 ** min(attempt, 20))",
        "ceiling = least * 2.0 ** min(attempt, 20)",
    ),
    M(
        "retry-after-ignored",
        RETRIES,
        "max(error.retry_after_seconds or 0.0, random.uniform(least, ceiling))",
        "random.uniform(least, ceiling)",
    ),
    M(
        "cancelled-timer-fires",
        TIMERS,
        "while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:",
        "while self._heap and self._heap[0][1] not in self._times:",
    ),
    # ---------------------------------------------------------------- ingest
    M(
        "kept-watches-of-any-epoch",
        INGEST,
        "if kept.claim.epoch + 1 == claim.epoch and kept.away.seconds <= KEEP_SECONDS:",
        "if kept.away.seconds <= KEEP_SECONDS:",
    ),
    M(
        "unwatched-is-not-marked",
        INGEST,
        "                self._emit(opened, mark)\n",
        "                pass\n",
    ),
    M(
        "withdrawn-rows-stay",
        INGEST,
        '                self._emit(opened, Emission(topic, key, None, ""))\n',
        "                pass\n",
    ),
    M("watch-away-not-marked", KINDWATCH, "if now - self._lost_at <= UNWATCHED_SECONDS:", "if True:"),
    M(
        "relist-with-the-same-epoch",
        KINDWATCH,
        '            self._epoch += 1\n            self._mark_topic(topic, "syncing")',
        '            self._mark_topic(topic, "syncing")',
    ),
    M(
        "relist-without-syncing",
        KINDWATCH,
        '            self._epoch += 1\n            self._mark_topic(topic, "syncing")',
        "            self._epoch += 1",
    ),
    M(
        "relist-keeps-what-is-gone",
        KINDWATCH,
        "            for key in gone:\n                self._tombstone(topic, key)\n",
        "",
    ),
    M(
        "unserved-kind-reads-as-empty",
        KINDWATCH,
        '                if resource is None:\n                    await self._unavailable("")\n                    continue',
        '                if resource is None:\n                    for topic in self.topics:\n                        self._write_list(topic, {})\n                    await self._unavailable("")\n                    continue',
    ),
    M(
        "event-of-equal-digest-is-written",
        KINDWATCH,
        "if self._known[row.topic].get(row.key) != row.digest:",
        "if True:",
    ),
    M(
        "new-versions-are-not-written",
        KINDWATCH,
        'if fresh or gone or state != "ok" or versions != ",".join(self._versions):',
        'if fresh or gone or state != "ok":',
    ),
    M(
        "partial-list-is-believed",
        KINDWATCH,
        "            items = items + await self._left_out(resource, items)",
        "            pass",
    ),
    M(
        "replay-forgets-deletions",
        KINDWATCH,
        "                    await self._confirm_gone(resource, seen)\n",
        "",
    ),
    M("content-read-overtakes-the-watch", KINDWATCH, "if (namespace, name) not in self._told:", "if True:"),
)
