"""Make sample_data/: support tickets as Parquet and JSONL, conversations of them, a file of bad lines, and pairs of
questions and help texts.

    python scripts/make_sample_data.py [FOLDER]

Seeded: the files are the same every time. People, products and shops in them are invented.
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet as pq

NUM_TICKETS = 300
SHARE_OF_COPIES = 0.05
SEED = 20260301
LONG_CHARS = 50_000
NUM_CONVERSATIONS = 40
"""From here on a text may tell its details again and again."""
FIRST_DAY = datetime(2026, 1, 5, 7, 30)  # noqa: DTZ001 - a ticket's local time


HELP_TEXTS = {
    "How do I send something back?": (
        "You can return any product within 30 days. Print the label from your account, put the product into "
        "its box and bring it to a post office."
    ),
    "Where is my parcel?": (
        "As soon as an order leaves our warehouse you get an e-mail with a tracking number. Enter it on the "
        "carrier's page to see where the shipment is."
    ),
    "Which payment methods are there?": (
        "We accept credit cards, PayPal, bank transfer and gift vouchers. The amount is charged when the "
        "order is shipped."
    ),
    "My password does not work any more.": (
        "If you cannot log in, choose 'forgotten password'. We send a link by e-mail, with which you set a "
        "new one within an hour."
    ),
    "How long is the guarantee?": (
        "All electric devices come with a warranty of two years. It covers faults of material and "
        "workmanship, but not damage by water or falls."
    ),
    "How do I clean the air filter?": (
        "Switch the purifier off, take the filter out at the back and vacuum it gently. Do not wash it: "
        "replace it every six months."
    ),
    "Can I change the delivery address?": (
        "As long as an order has not been packed, you can edit where it is delivered to under 'my orders'. "
        "Later on, please call us."
    ),
    "The tent leaks in the rain.": (
        "Seams wear with time. Let the fabric dry, put seam sealer on from the inside and wait for a night "
        "before you use the tent again."
    ),
}
"""Questions, and the texts that answer them."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One support ticket, as a row of both files."""

    ticket_id: str
    subject: str
    body: str
    language: str
    product: str
    created_at: datetime
    priority: int


@dataclass(frozen=True, slots=True)
class Language:
    """The sentences of one language. `{product}`, `{part}`, `{order}`, `{version}`, `{days}` are filled in."""

    greetings: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]
    """Subject and opening sentence."""
    details: tuple[str, ...]
    wishes: tuple[str, ...]
    closings: tuple[str, ...]


PRODUCTS = {
    "Lumo desk lamp": ("dimmer", "power supply", "touch ring", "hinge"),
    "Brisa air purifier": ("filter light", "fan", "sleep mode", "air sensor"),
    "Tarn water bottle": ("lid", "seal", "carry loop", "straw"),
    "Nestor smart plug": ("pairing button", "schedule", "power meter", "app connection"),
    "Karo backpack": ("zip", "shoulder strap", "rain cover", "laptop sleeve"),
    "Fjella tent": ("pole", "ground sheet", "inner door", "guy line"),
    "Pico label printer": ("ribbon", "cutter", "Bluetooth link", "label roll"),
    "Orbit budget app": ("export", "monthly report", "login", "bank import"),
}
NAMES = ("Ada", "Jonas", "Mireille", "Tomas", "Noor", "Elif", "Sven", "Lucia", "Hugo", "Ines", "Ravi", "Maja")

ENGLISH = Language(
    greetings=("Hello,", "Hi there,", "Good morning,", "Dear support team,", "Hey,", "To whom it may concern,", ""),
    problems=(
        ("{part} stopped working", "the {part} of my {product} stopped working after {days} days."),
        (
            "Refund for order {order}",
            "I sent back my {product} {days} days ago and still have no refund for order {order}.",
        ),
        (
            "{product}: wrong item delivered",
            "I ordered a {product} and got a box with a different one (order {order}).",
        ),
        ("Charged twice", "my card was charged twice for the same {product}, order {order}."),
        ("How do I reset the {part}?", "I cannot find how to reset the {part} on the {product}."),
        (
            "Update {version} broke the {part}",
            "since update {version} the {part} of the {product} does nothing at all.",
        ),
        ("Parcel is late", "the tracking of order {order} has not moved for {days} days. It holds a {product}."),
        ("Broken on arrival", "the {product} came with a cracked {part}. The parcel itself looked fine."),
        ("Spare {part}", "do you sell the {part} of the {product} on its own?"),
        ("Cancel my subscription", "please cancel the plan that came with my {product}. I do not use it any more."),
        ("Invoice with VAT number", "I need an invoice for order {order} with our VAT number on it."),
        ("Strange noise from the {product}", "the {part} makes a loud noise every time, mostly in the evening."),
        ("Thank you!", "I only want to say that the {product} is the best thing I bought this year."),
        ("Question about the warranty", "is the {part} of the {product} covered after {days} days?"),
        (
            "Cannot sign in",
            "I asked for a new password {days} times and no mail arrives, so I cannot use the {product}.",
        ),
    ),
    details=(
        "I already switched it off and on again, took the {part} out and put it back, and nothing changed.",
        "It worked fine for the first {days} days.",
        "The light blinks {days} times, then it is quiet again.",
        "I tried it in two rooms and with another socket.",
        "My neighbour has the same {product} and hers is fine.",
        "The manual says to hold the button for ten seconds, but on mine there is no such button.",
        "I bought it as a present, which makes this a bit embarrassing.",
        "The version shown in the settings is {version}.",
        "I wrote to you {days} days ago and got only an automatic reply.",
        "On the phone I was told that somebody would call back. Nobody did.",
        "The shop said that I have to ask you, and you say that I have to ask the shop.",
        "I attach two photos. On the second one you can see the {part} from below.",
        "The error on the screen is E{version}, and I found nothing about it on help.example.com.",
        "We use eleven of them in the office, and only this one does it.",
        "To be fair, your chat colleague was friendly, but the advice (reinstall everything) did not help.",
        "It happens more often when it is cold, below five degrees or so.",
        "I paid for express delivery, by the way.",
        "My address has changed since: the new one is in my account already.",
        "I work shifts, so mail is better than a call.",
        "Before you ask: yes, I registered the {product} on the day it came.",
        "What I see is this: first the {part} is warm, then there is a click, then all of it is dead for an hour.",
        "I do not want to complain about the price, only about the {part}.",
        "My daughter says that I should film it, so there is a short film at files.example.com under my ticket number.",
        "A friend who repairs radios opened it for me and could not see anything burnt or loose inside.",
        "If it helps: the number on the sticker below ends with {order}.",
        "I had the older model for {days} years, and in all that time the {part} never gave me any trouble.",
        "There was no paper in the box, neither a bill nor a slip for sending things back.",
        "I looked through the forum and found {days} people with the same question and not one answer.",
        "On some days it works for an hour and I almost believe that it is over, and then it begins again.",
        "Your page says that the {part} can be changed without tools. I would like to meet the person who wrote that.",
        "We are moving house at the end of the month, so anything that is sent later goes to the wrong door.",
        "I kept all of the packaging, so it could go back the way it came.",
        "The first thing that I noticed was the smell, a bit like warm rubber.",
        "Last time something like this happened, your team solved it within a day, and I was impressed.",
    ),
    wishes=(
        "Please send me a new {part}.",
        "I would like my money back.",
        "Could you tell me what to try next?",
        "A short answer is enough.",
        "Please confirm that you got this.",
        "If this takes another week I will order elsewhere.",
        "Can somebody who knows the {product} look at it?",
        "No hurry.",
    ),
    closings=(
        "Thanks,\n{name}",
        "Kind regards\n{name}",
        "Best,\n{name}",
        "{name}",
        "Cheers, {name} \N{WAVING HAND SIGN}",
        "",
    ),
)

GERMAN = Language(
    greetings=("Hallo,", "Guten Tag,", "Sehr geehrte Damen und Herren,", ""),
    problems=(
        ("{product} defekt", "mein {product} geht seit {days} Tagen nicht mehr ({part})."),
        ("Rückgabe der Bestellung {order}", "ich möchte die Bestellung {order} zurückgeben und warte auf ein Etikett."),
        ("Rechnung fehlt", "zur Bestellung {order} ({product}) habe ich keine Rechnung bekommen."),
        ("Lieferung unvollständig", "im Paket mit dem {product} fehlte ein Teil: {part}."),
    ),
    details=(
        "Ich habe das Gerät schon aus- und wieder eingeschaltet, ohne Erfolg.",
        "Angezeigt wird die Version {version}.",
        "Vor {days} Tagen habe ich schon einmal geschrieben, aber keine Antwort erhalten.",
        "Die Verpackung war unbeschädigt, das Gerät selbst hat aber einen Riss.",
        "Außerdem wüsste ich gern, ob die Garantie dafür gilt.",
        "Im Handbuch steht dazu leider nichts, und auf der Seite help.example.com habe ich auch nichts gefunden.",
        "Bis vor Kurzem war ich sehr zufrieden, und ich würde das Gerät gern behalten.",
        "Tagsüber bin ich schlecht zu erreichen, eine kurze Nachricht genügt mir.",
    ),
    wishes=("Bitte schicken Sie mir Ersatz.", "Ich hätte gern mein Geld zurück.", "Was soll ich als Nächstes tun?"),
    closings=("Viele Grüße\n{name}", "Mit freundlichen Grüßen\n{name}", "Danke!"),
)

FRENCH = Language(
    greetings=("Bonjour,", "Madame, Monsieur,", ""),
    problems=(
        ("Produit en panne : {product}", "mon {product} ne marche plus depuis {days} jours ({part})."),
        (
            "Remboursement {order}",
            "j'attends toujours le remboursement de la commande {order}, renvoyée il y a {days} jours.",
        ),
        ("Colis jamais reçu", "le suivi indique que la commande {order} est livrée, mais je n'ai rien reçu."),
    ),
    details=(
        "J'ai déjà essayé de le réinitialiser, sans succès.",
        "La version affichée est {version}.",
        "C'était un cadeau d'anniversaire, c'est donc un peu gênant.",
        "Votre collègue au téléphone m'a promis un rappel, que j'attends encore.",
        "J'ai gardé l'emballage et je peux tout vous renvoyer dès demain.",
        "Je ne trouve rien à ce sujet dans le mode d'emploi.",
    ),
    wishes=("Pouvez-vous m'envoyer une pièce de rechange ?", "Merci de me rembourser.", "Que dois-je faire ?"),
    closings=("Cordialement,\n{name}", "Merci d'avance,\n{name}", "Bonne journée"),
)

SPANISH = Language(
    greetings=("Hola:", "Buenos días:", ""),
    problems=(
        ("{product} no funciona", "mi {product} dejó de funcionar hace {days} días ({part})."),
        ("¿Dónde está mi pedido {order}?", "el pedido {order} tenía que llegar hace {days} días."),
        ("Cobro doble", "me han cobrado dos veces el pedido {order}."),
    ),
    details=(
        "Ya lo apagué y lo volví a encender, y sigue igual.",
        "La versión que aparece es {version}.",
        "La caja llegó abierta, aunque por fuera no se notaba.",
        "Escribí hace {days} días y nadie me ha contestado.",
        "Guardo la factura y el embalaje, por si hace falta devolverlo todo.",
        "Por lo demás estoy contenta con la compra.",
    ),
    wishes=("Por favor, envíenme un repuesto.", "Quiero que me devuelvan el dinero.", "¿Qué puedo hacer?"),
    closings=("Un saludo,\n{name}", "Gracias,\n{name}", "Quedo a la espera."),
)

LANGUAGES = {"en": ENGLISH, "de": GERMAN, "fr": FRENCH, "es": SPANISH}
LANGUAGE_WEIGHTS = (84, 7, 5, 4)


def main(folder: Path) -> None:
    """Write all files of sample_data/ except its README."""
    folder.mkdir(parents=True, exist_ok=True)
    tickets = make_tickets(random.Random(SEED))
    write_parquet(folder / "tickets.parquet", tickets)
    (folder / "tickets.jsonl").write_bytes(b"".join(format_line(ticket) + b"\n" for ticket in tickets))
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in iter_conversations(tickets)]
    (folder / "conversations.jsonl").write_bytes(b"".join(lines))
    threads = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in iter_threads(tickets)]
    (folder / "threads.jsonl").write_bytes(b"".join(threads))
    (folder / "broken.jsonl").write_bytes(b"".join(iter_broken_lines(random.Random(SEED + 1))))
    (folder / "pairs.jsonl").write_bytes(b"".join(iter_pairs()))


def make_tickets(rng: random.Random) -> list[Ticket]:
    """The tickets in order of time; some repeat the text of an earlier one under another id."""
    tickets: list[Ticket] = []
    copies = set(rng.sample(range(20, NUM_TICKETS), round(NUM_TICKETS * SHARE_OF_COPIES)))
    created_at = FIRST_DAY
    for index in range(NUM_TICKETS):
        created_at += timedelta(seconds=60 * round(rng.expovariate(1 / 95)) + rng.randrange(60))
        if index in copies:
            ticket = replace(rng.choice(tickets), ticket_id=ticket_id(index), created_at=created_at)
        else:
            ticket = make_ticket(rng, ticket_id(index), created_at)
        tickets.append(ticket)
    return tickets


def iter_conversations(tickets: list[Ticket]) -> Iterator[dict[str, object]]:
    """Conversations with customers, each with how its answer is to be drawn; null: as the job says."""
    rng = random.Random(SEED + 2)
    short = [ticket for ticket in tickets if ticket.language == "en" and len(ticket.body) < 400]
    for number, ticket in enumerate(short[:NUM_CONVERSATIONS], start=1):
        messages = [{"role": "user", "content": f"{ticket.subject}\n\n{ticket.body}"}]
        if number % 3 == 0:
            question = f"Thank you for writing. Since when do you have your {ticket.product}?"
            messages.append({"role": "assistant", "content": question})
            messages.append({"role": "user", "content": f"For {rng.randint(2, 30)} weeks. What shall I do?"})
        yield {
            "conversation_id": f"C-{number:03d}",
            "messages": messages,
            "temperature": rng.choice([None, 0.0, 0.4, 0.8]),
            "max_tokens": rng.choice([None, 24, 64]),
            "seed": number,
        }


def iter_threads(tickets: list[Ticket]) -> Iterator[dict[str, object]]:
    """All English mails about a product, one after the other, in texts from about 2,000 to 40,000 characters."""
    rng = random.Random(SEED + 3)
    for number, product in enumerate(PRODUCTS, start=1):
        mails = [ticket for ticket in tickets if ticket.product == product and ticket.language == "en"]
        mails = mails[: rng.randint(4, len(mails))]
        texts = [f"On {mail.created_at:%d %B %Y}: {mail.subject}\n\n{mail.body}" for mail in mails]
        yield {"thread_id": f"P-{number:02d}", "product": product, "num_mails": len(mails), "text": "\n\n".join(texts)}


def ticket_id(index: int) -> str:
    """T-00001 for the first."""
    return f"T-{index + 1:05d}"


def make_ticket(rng: random.Random, name: str, created_at: datetime, num_chars: int | None = None) -> Ticket:
    """One ticket whose body has about `num_chars` characters: by default spread as lengths of mails are, to 2,500."""
    code = rng.choices(list(LANGUAGES), LANGUAGE_WEIGHTS)[0]
    product = rng.choice(list(PRODUCTS))
    if num_chars is None:
        num_chars = min(2400, max(40, round(rng.lognormvariate(5.7, 0.85))))
    subject, body = write_text(rng, LANGUAGES[code], product, num_chars)
    return Ticket(name, subject, body, code, product, created_at, rng.choices((1, 2, 3, 4), (5, 15, 50, 30))[0])


def write_text(rng: random.Random, language: Language, product: str, num_chars: int) -> tuple[str, str]:
    """Subject and body. The text ends early when all details are told, unless it must be much longer than they are."""
    words = {
        "product": product,
        "part": rng.choice(PRODUCTS[product]),
        "order": f"{rng.randrange(10**6, 10**7)}",
        "name": rng.choice(NAMES),
    }
    subject, opening = rng.choice(language.problems)
    greeting, wish, closing = (rng.choice(texts) for texts in (language.greetings, language.wishes, language.closings))
    sentences = [opening[0].upper() + opening[1:]]
    details: list[str] = []
    while sum(map(len, sentences)) < num_chars - len(wish) - len(greeting) - len(closing):
        if not details and len(sentences) > 1 and num_chars < LONG_CHARS:
            break
        details = details or rng.sample(language.details, len(language.details))
        sentences.append(details.pop())
    if num_chars > 90:
        sentences.append(wish)
    text = fill_in(rng, words, split_paragraphs(rng, sentences))
    if num_chars > 140:
        text = "\n\n".join(part for part in (greeting, text, fill_in(rng, words, closing)) if part)
    subject = fill_in(rng, words, subject)
    return subject[0].upper() + subject[1:], text


def split_paragraphs(rng: random.Random, sentences: list[str]) -> str:
    """Join sentences by blanks, and now and then by a blank line."""
    return "".join(sentence + ("\n\n" if rng.random() < 0.2 else " ") for sentence in sentences).strip()


def fill_in(rng: random.Random, words: dict[str, str], text: str) -> str:
    """Put the ticket's words in, and a new number at each place that asks for one."""
    while "{days}" in text:
        text = text.replace("{days}", str(rng.randint(2, 29)), 1)
    while "{version}" in text:
        text = text.replace("{version}", f"{rng.randint(1, 9)}.{rng.randint(0, 20)}", 1)
    return text.format(**words)


def write_parquet(path: Path, tickets: list[Ticket]) -> None:
    """Write several row groups, as larger files have."""
    schema = pa.schema(
        [
            ("ticket_id", pa.string()),
            ("subject", pa.string()),
            ("body", pa.string()),
            ("language", pa.string()),
            ("product", pa.string()),
            ("created_at", pa.timestamp("us")),
            ("priority", pa.int64()),
        ]
    )
    table = pa.Table.from_pylist([asdict(ticket) for ticket in tickets], schema=schema)
    pq.write_table(table, path, row_group_size=100, compression="zstd")


def iter_pairs() -> Iterator[bytes]:
    """Each question with each help text, as lines of JSONL; one in eight answers its question."""
    for number, question in enumerate(HELP_TEXTS, start=1):
        for other, passage in enumerate(HELP_TEXTS.values(), start=1):
            row = {"pair_id": f"{number}-{other}", "question": question, "passage": passage, "answers": number == other}
            yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


def format_row(ticket: Ticket) -> dict[str, object]:
    """The ticket as a JSON object."""
    return asdict(ticket) | {"created_at": ticket.created_at.isoformat()}


def format_line(ticket: Ticket) -> bytes:
    """The ticket as a line of JSONL, without the line's end."""
    return json.dumps(format_row(ticket), ensure_ascii=False).encode()


def iter_broken_lines(rng: random.Random) -> Iterator[bytes]:
    """Good tickets with one of each kind of bad line among them; sample_data/README.md tells them line by line."""
    for index, line in enumerate(list_bad_lines(rng)):
        yield format_line(make_good_ticket(rng, 2 * index)) + b"\n"
        yield line
    yield format_line(make_good_ticket(rng, 28)) + b"\n"


def list_bad_lines(rng: random.Random) -> list[bytes]:
    """The bad lines, each with its line's end; they stand on the even lines of the file."""
    rows = [format_row(make_good_ticket(rng, 2 * index + 1)) for index in range(16)]
    good = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    without_body = {name: value for name, value in rows[7].items() if name != "body"}
    long_body = make_ticket(rng, "B-00027", FIRST_DAY, num_chars=60_000).body
    lines = [
        good[0][: len(good[0]) // 2],
        json.dumps(list(rows[1].values()), ensure_ascii=False).encode(),
        b"  ",
        good[3].replace(b'"body": "', b'"body": "caf\xe9 ', 1),
        good[4].replace(b'"body": "', b'"body": "\x00', 1),
        good[5].replace(b'"body": "', b'"body": "\\ud83d ', 1),
        json.dumps(rows[6] | {"body": None}, ensure_ascii=False).encode(),
        json.dumps(without_body, ensure_ascii=False).encode(),
        json.dumps(rows[8] | {"body": 4711}, ensure_ascii=False).encode(),
        json.dumps(rows[9] | {"body": {"text": rows[9]["body"], "lines": 1}}, ensure_ascii=False).encode(),
        json.dumps(rows[10] | {"body": ""}, ensure_ascii=False).encode(),
        json.dumps(rows[11] | {"body": long_body}, ensure_ascii=False).encode(),
        good[12] + b"\r",
        good[13] + b" " + good[14],
    ]
    return [line + b"\n" for line in lines]


def make_good_ticket(rng: random.Random, index: int) -> Ticket:
    """A ticket of the broken file: B-00001 is its first line."""
    return make_ticket(rng, f"B-{index + 1:05d}", FIRST_DAY + timedelta(minutes=index))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "sample_data")
