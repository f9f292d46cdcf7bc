# ruff: noqa: E501 - whole paragraphs
"""Pieces the corpus is made from. Our own sentences; nothing is quoted."""

PARAGRAPHS = [
    "The harbour master keeps two ledgers, one for the ships that came and one for the ships that were promised. On "
    "quiet evenings he compares them by lamplight, moving a ruler down the columns, and where a promise has not been "
    "kept he writes the name of the captain on a slip of paper and pins it above the stove. Nobody has ever asked him "
    "to do this. He says that a harbour which forgets its debts will soon be a beach.",
    "To find the fault, first measure the supply voltage at the connector while the motor is running. If it sags below "
    "eleven volts the battery or its cable is tired; replace whichever warms up. If the supply holds steady, unplug the "
    "controller and check the resistance between each pair of windings. All three readings should agree within a few "
    "percent. A reading that is far off means a broken winding, and the motor has to be rewound.",
    "We considered three explanations for the drop in yield. The first was temperature, but the loggers show nothing "
    "unusual. The second was contamination of the feed, which the laboratory ruled out in March. The third, and the one "
    "that fits all observations, is that the new stirrer leaves a dead zone near the wall where the catalyst settles. A "
    "simple baffle would remove it, and the old vessel had one.",
    "My grandmother planted walnut trees in a row along the lane, too close together, because she did not believe she "
    "would live to see them touch. They touched the summer she turned ninety. She walked under them every morning with "
    "a stick she did not need, counting the trunks aloud, and when she reached the end she counted them again on the "
    "way home, in case one had been taken while her back was turned.",
    "Der Bäcker an der Ecke öffnet um fünf, lange bevor die Straße hell wird. Wer früh genug kommt, sieht ihn durch die "
    "Scheibe mit weißen Unterarmen die Bleche drehen. Er spricht wenig, zählt das Wechselgeld laut vor und legt den "
    "Kindern manchmal ein Stück vom Rand dazu. Im Winter beschlägt das Fenster, und man kauft mit geschlossenen Augen.",
    "Le train de nuit traverse la plaine sans s'arrêter, et les gares abandonnées passent comme des visages qu'on ne "
    "reconnaît plus. Une femme lit à voix basse pour son fils endormi. Le contrôleur, qui connaît chaque courbe, pose la "
    "main sur la vitre avant les ponts. Au matin, la mer apparaît d'un seul coup, et tout le wagon se tait.",
]

THOUGHTS = [
    "Wait, maybe I should check the boundary case again. If the list is empty the loop does not run and the result is "
    "zero, which is what the statement says. So the answer should be fine. But let me make sure that I did not miss the "
    "case where the first element is negative.",
    "Hmm, that does not look right. Let me recompute. The total is the sum of the parts, so we need the parts first. The "
    "parts are given in the table. Adding them up gives the total. Then the total divided by the count is the mean.",
    "Actually, the user asked for a function that returns a list, not a generator. So I need to change the return type. "
    "Let me rewrite the function. Then again, a generator would be more efficient. But the user asked for a list.",
    "Let me think about this differently. Suppose the door is locked. Then the key must be inside. But if the key is "
    "inside then somebody must have locked the door from inside. So somebody is inside. But nobody is inside.",
    "Okay, so the final answer is yes. But hold on, the question says at most, not at least. So the answer may be no. Let "
    "me read the question again. It says at most. Therefore the final answer is yes.",
]

SHORT_LINES = [
    "I will not talk in class.",
    "The same line again.",
    "He walked and walked and walked.",
    "No further changes are needed.",
    "This concludes the analysis of the report.",
    "Please let me know if you have any other questions.",
]

FUNCTION = '''def parse_duration(text: str) -> float:
    """Seconds in a text such as 1h30m."""
    total = 0.0
    for amount, unit in PATTERN.findall(text):
        total += float(amount) * UNITS[unit]
    if not total:
        raise ValueError(f"no duration in {text!r}")
    return total

'''

METHOD = """    public void setValue(String value) {
        if (value == null) {
            throw new IllegalArgumentException("value must not be null");
        }
        this.value = value.trim();
        notifyListeners(this.value);
    }

"""

SENTENCES = [
    "The valve has to be closed before the pump is started.",
    "Water in the housing is a sign of a worn seal.",
    "A new seal needs two hours to settle.",
    "The pressure must not rise above four bar.",
    "Check the gauge on the left side first.",
    "The gauge on the right side follows with a delay.",
    "Only trained staff may open the cabinet.",
    "Keep the area around the drain clear.",
    "If the alarm sounds, press the yellow button once.",
    "Write the reading into the log after each shift.",
    "The log is collected on the first Monday of the month.",
    "Old readings are kept for at least two years.",
]

CHORUS = (
    "Roll the barrels down the hill,\nroll them while the night is still,\nroll them till the morning bell,\n"
    "roll them home and roll them well.\n"
)

NAMES = ["Aino", "Bram", "Carla", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaisa", "Lucien", "Mira", "Noor", "Otto", "Petra", "Quentin", "Rosa", "Sami", "Tove", "Umar", "Vera", "Wim", "Ximena", "Yara", "Zeno", "Anneke", "Boris", "Chiara", "Dario", "Esra", "Finn", "Gaia", "Henk", "Ida", "Jaana", "Koen", "Leila", "Milan", "Nadia"]

NOUNS = ["anchor", "basket", "candle", "drawer", "engine", "feather", "garden", "hammer", "island", "jacket", "kettle", "ladder", "mirror", "needle", "orchard", "paddle", "quarry", "ribbon", "saddle", "tunnel", "umbrella", "valley", "window", "yard", "zipper", "bridge", "cradle", "desk", "ember", "fence", "gate", "hinge", "ink", "jar", "knot", "lamp", "mast", "net", "oar", "pier"]
