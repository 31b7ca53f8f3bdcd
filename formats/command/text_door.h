/* The door by which text leaves to people: stdout and stderr of the command.
 *
 * Behind lb_text_door_open every printf goes through it. What a terminal would obey or could not show is spelt out
 * (lastbit/text.h): a control character but the ends of lines and tabs, one that turns the direction of the text, an
 * invisible one, a byte that is no UTF-8. So no print of a name can go around it. What a terminal is to obey is said by
 * lb_text_code and lb_text_return. */
#ifndef LB_TEXT_DOOR_H
#define LB_TEXT_DOOR_H

/* Before anything is printed. What cannot be set up stays as it is, but for a message that it is so. */
void lb_text_door_open(void);

/* A colour, "32" or "30;48;5;16", or "0" for the end of it, as a text to print: the door lets this one through, for it
 * bears a mark that is known in this process alone. Valid until the eighth call after it. */
const char *lb_text_code(const char *numbers);
/* Back to the start of the line, for a bar. */
const char *lb_text_return(void);

#endif
