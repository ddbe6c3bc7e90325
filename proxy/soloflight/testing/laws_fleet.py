"""Laws of what nodes tell each other beside flights: words are heard by all, marks stay for those who come later."""

from __future__ import annotations

from soloflight.testing.laws import Laws


class FleetLaws(Laws):
    """An operator's words, and moments to remember."""

    async def test_a_word_reaches_every_node_in_order_its_speaker_too(self) -> None:
        async with self.parties(3) as (a, b, c):
            await a.coordinator.tell("first – «word»")
            await a.coordinator.tell("x" * 512)
            for party in (a, b, c):
                await party.words.holds("first – «word»", "x" * 512)
                assert party.rings.items == []

    async def test_a_mark_is_seen_by_all_and_the_newest_counts(self) -> None:
        async with self.parties(2) as (a, b):
            name = f"stage {a.key}"
            assert name not in await b.coordinator.marks()
            await a.coordinator.mark(name)
            first = (await b.coordinator.marks())[name]
            await self.advance(10)
            await b.coordinator.mark(name)
            again = (await a.coordinator.marks())[name]
            assert 0 <= first < 60_000
            assert 0 <= again < 60_000
